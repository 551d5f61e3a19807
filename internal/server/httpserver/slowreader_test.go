package httpserver

import (
	"testing"
	"time"
)

// A write that ends in time causes no notice, even if its timer fires late.
func TestReaderNotifiesDuringWritesOnly(t *testing.T) {
	var reported []bool
	r := &SlowReader{After: time.Hour, Notify: func(yes bool) { reported = append(reported, yes) }}
	r.begin()
	r.end()
	r.late()
	r.begin()
	r.late()
	r.late()
	r.end()
	if len(reported) != 2 || !reported[0] || reported[1] {
		t.Errorf("notified %v", reported)
	}
}
