//go:build linux

package tensor

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// BenchmarkExchange is a product of two threads, then a message to another goroutine, which works
// for 200 us before it replies, as in a step over nodes. It shows how the waiting threads disturb
// that goroutine. GOMAXPROCS=3 and more leave one of Go's Ps idle. switches: of the system's
// threads.
func BenchmarkExchange(b *testing.B) {
	const size, others = 8192, 200 * time.Microsecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, size); ; {
			if _, err := io.ReadFull(there, buf); err != nil {
				return
			}
			for began := time.Now(); time.Since(began) < others; {
			}
			if _, err := there.Write(buf); err != nil {
				return
			}
		}
	}()
	p := NewPool(2)
	defer p.Close()
	buf, before, spent, n := make([]byte, size), switches(), p.Spent(), 0.0
	for b.Loop() {
		p.Run(16, func(int) {
			for range 100 {
				kernel.Pause()
			}
		})
		if _, err := here.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(here, buf); err != nil {
			b.Fatal(err)
		}
		n++
	}
	spent = p.Spent().Sub(spent)
	b.ReportMetric((switches()-before)/n, "switches/op")
	b.ReportMetric(float64(spent.Absent)/float64(max(1, 2*spent.Wall)), "absent")
	here.Close()
	there.Close()
	<-ended
}

func switches() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Nvcsw)
}
