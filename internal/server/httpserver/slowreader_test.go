package httpserver

import (
	"testing"
	"time"
)

// A write that ends in time causes no notice, even if its timer fires late.
func TestReaderNotifiesDuringWritesOnly(t *testing.T) {
	var told []bool
	r := &SlowReader{After: time.Hour, Notify: func(yes bool) { told = append(told, yes) }}
	r.begin()
	r.end()
	r.late()
	r.begin()
	r.late()
	r.late()
	r.end()
	if len(told) != 2 || !told[0] || told[1] {
		t.Errorf("notified %v", told)
	}
}
