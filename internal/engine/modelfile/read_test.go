package modelfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadTakesRegularFilesWithinTheBound(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		limit int64
		want  error
	}{
		{path, 10, nil},
		{path, 11, nil},
		{path, 9, ErrTooLarge},
		{dir, 10, ErrNotRegular},
		{os.DevNull, 10, ErrNotRegular},
		{filepath.Join(dir, "none"), 10, fs.ErrNotExist},
	} {
		data, err := Read(c.path, c.limit)
		if !errors.Is(err, c.want) || err == nil && string(data) != "0123456789" {
			t.Errorf("Read(%q, %d) = %q, %v; want error %v", c.path, c.limit, data, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), c.path) {
			t.Errorf("%q does not name %s", err, c.path)
		}
	}
}

func TestJSONTakesPythonsNumbers(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"a": NaN}`, `{"a": 1e99999}`},
		{`{"a":Infinity,"b":-Infinity}`, `{"a":2e99999,"b":-2e99999}`},
		{`[NaN, [Infinity], -1, "NaN"]`, `[1e99999, [2e99999], -1, "NaN"]`},
		{`{"NaN": "Infinity \" NaN \\", "b": NaN}`, `{"NaN": "Infinity \" NaN \\", "b": 1e99999}`},
		{`NaN`, `1e99999`},
		{`{"a": 1}`, `{"a": 1}`},
	} {
		got := JSON([]byte(c.in))
		if string(got) != c.want {
			t.Errorf("JSON(%s) = %s, want %s", c.in, got, c.want)
		}
		if !json.Valid(got) || Words(string(got)) != c.in {
			t.Errorf("JSON(%s) = %s", c.in, got)
		}
		var text string
		var x float64
		if strings.HasPrefix(c.in, "NaN") && (json.Unmarshal(got, &text) == nil || json.Unmarshal(got, &x) == nil) {
			t.Errorf("%s is %q or %g", c.in, text, x)
		}
	}
	for _, bad := range []string{`{"a": 1NaN}`, `{"a": nan}`, `{NaN: 1}x`, `{NaN: 1}`, `{"a": 1, Infinity : 2}`, `{"a": 1, NaN: 2}`, `-NaN`, `1.NaN`, `NaN2`, `[1NaN]`, `"NaN`, `{"a": "Infinity\`, `+Infinity`, `--Infinity`} {
		if got := JSON([]byte(bad)); json.Valid(got) {
			t.Errorf("JSON(%s) = %s is valid", bad, got)
		}
	}
}
