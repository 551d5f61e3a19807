package launch

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestNoGoStructsInTheLog checks that struct values are JSON in both log formats.
func TestNoGoStructsInTheLog(t *testing.T) {
	type inner struct{ Least, Most int }
	value := struct {
		Threads inner
		Read    float64
	}{inner{1, 2}, 3.5}
	for _, c := range []struct {
		json bool
		want []string
	}{
		{false, []string{`speeds="{\"Threads\":{\"Least\":1,\"Most\":2},\"Read\":3.5}"`, `list="[\"a b\",\"c\"]"`, "pointer=", `error=bad`, "took=1s", "n=7"}},
		{true, []string{`"speeds":{"Threads":{"Least":1,"Most":2},"Read":3.5}`, `"list":["a b","c"]`, `"error":"bad"`, `"n":7`}},
	} {
		var out bytes.Buffer
		LogFlags{LogLevel: "info", LogJSON: c.json}.logger(&out).Info("measured", "speeds", value, "pointer", &value, "list",
			[]string{"a b", "c"}, "map", map[string]int{"a": 1}, "error", errors.New("bad"), "took", time.Second, "n", 7, "nothing", nil)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %s in %s", want, &out)
			}
		}
		if text := out.String(); strings.Contains(text, "map[") || strings.Contains(text, "{{") || strings.Contains(text, "Threads:{") {
			t.Errorf("Go syntax in %s", text)
		}
	}
}
