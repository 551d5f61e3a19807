package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective"
)

// BenchmarkCollective prints the latency of each collective until every rank has its result, over a
// mesh of NATS servers in this process. Protocol and sockets are those of node processes, on one
// machine.
func BenchmarkCollective(b *testing.B) {
	const nodes, repeat = 4, 200
	groups, stop, err := mesh(b.Context(), nodes)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	fmt.Printf("%-12s %10s %10s %10s %10s   (us, %d nodes, until all ranks are done)\n", "", "bytes", "best", "median", "p99", nodes)
	op := collective.OpID(0)
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10} { // a rank's part (all-gather), or the vector (all-reduce)
		for _, kind := range []string{"barrier", "all-gather", "all-reduce"} {
			if kind == "barrier" && size > 1<<10 {
				continue
			}
			w := newWork(nodes, size/4)
			var took []time.Duration
			for i := range repeat + repeat/10 + 1 {
				op++
				began := time.Now()
				if err := w.run(b.Context(), groups, kind, op); err != nil {
					b.Fatalf("%s of %d bytes: %v", kind, size, err)
				}
				if i > repeat/10 {
					took = append(took, time.Since(began))
				}
			}
			slices.Sort(took)
			us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
			fmt.Printf("%-12s %10d %10.0f %10.0f %10.0f\n", kind, size, us(took[0]), us(took[len(took)/2]), us(took[len(took)*99/100]))
		}
	}
}
