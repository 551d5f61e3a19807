//go:build !linux

package natsbus

// poller exists on Linux only. Elsewhere a goroutine reads each connection.
type poller struct{}

func newPoller() (*poller, error) { return new(poller), nil }

func (*poller) adopt(*link) error { return nil }
func (*poller) add(*link) bool    { return false }
func (*poller) count() int        { return -1 }
func (*poller) poll()             {}
func (*poller) rest()             {}
func (*poller) close()            {}
