package lograte

import (
	"fmt"
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	var l Limiter
	now := time.Now()
	written, counted := 0, 0
	for i := range 20000 { // in 25 s
		ok, leftOut, last := l.Allow(Kind(fmt.Sprintf(`unknown message %d from=10.0.0.%d:7 "%x"`, i%256, i%7, i)), now.Add(time.Duration(i)*time.Second/800))
		if ok {
			written++
			counted += leftOut + 1
		}
		if last != (written%burst == 0 && ok) {
			t.Fatalf("line %d of %d is the last: %v", i, written, last)
		}
	}
	if written != 3*burst || counted < 16000 || counted > 20000 {
		t.Errorf("of 20000 lines %d were written, and %d are accounted for", written, counted)
	}
	if ok, _, _ := l.Allow("another kind", now); !ok {
		t.Error("another kind is left out")
	}
	for i := range 10 * maxKinds {
		l.Allow(fmt.Sprint(i), now)
	}
	if len(l.kinds) > maxKinds+1 {
		t.Errorf("%d kinds are kept", len(l.kinds))
	}
}
