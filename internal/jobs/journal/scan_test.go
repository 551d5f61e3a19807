package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

// The server delivers messages later than Scan waits for them. Scan reads all of them nevertheless.
func TestScanOfASlowServer(t *testing.T) {
	nc, stop := natstest.Alone(t, t.TempDir(), 0)
	l, err := openStream(t.Context(), nc, JobStream, JobSubjects, "", 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); stop() })
	var want []string
	for i := range 20 {
		name := fmt.Sprint("job-", i%7)
		after, _, err := l.Last(t.Context(), name)
		if err == nil {
			after, err = l.Append(t.Context(), name, after, []byte{byte(i)})
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%7 == 3 {
			continue // dropped below
		}
		want = append(want, fmt.Sprint(name, after, []byte{byte(i)}))
	}
	if err := l.Drop(t.Context(), "job-3"); err != nil {
		t.Fatal(err)
	}
	for _, pause := range []time.Duration{time.Nanosecond, scanPause} {
		l.pause = pause
		var got []string
		err := l.Scan(t.Context(), func(name string, seq uint64, data []byte) error {
			got = append(got, fmt.Sprint(name, seq, data))
			return nil
		})
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("pause %v: got %v, %v, want %v", pause, got, err, want)
		}
	}
}
