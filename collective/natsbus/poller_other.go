//go:build !linux

package natsbus

// poller is Linux' alone; elsewhere each connection has a goroutine that reads it.
type poller struct{}

func newPoller() (*poller, error) { return new(poller), nil }

func (*poller) adopt(*link) error { return nil }
func (*poller) add(*link) bool    { return false }
func (*poller) count() int        { return -1 }
func (*poller) poll()             {}
func (*poller) rest()             {}
func (*poller) close()            {}
