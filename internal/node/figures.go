package node

import (
	"bytes"
	"os"
	"runtime"
	"strconv"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// respond sends the result of a call, or its error.
func respond(c *rpc.Ctx, m pb.Message, err error) {
	if err != nil {
		c.Fail(err)
		return
	}
	_ = c.Reply(m)
}

// processFigures adds the figures of the process to those of its socket.
func processFigures(s *proto.SocketStatus, bus *natsbus.Server) *proto.SocketStatus {
	s.Subscriptions = uint32(bus.Subscriptions())
	s.Goroutines = uint32(runtime.NumGoroutine())
	s.ResidentBytes = residentBytes()
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.OpenFiles = uint32(len(d))
	}
	return s
}

// residentBytes returns the resident memory of this process from Linux's /proc, 0 on other systems.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}
