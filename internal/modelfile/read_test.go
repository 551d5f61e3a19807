package modelfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
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
		{`{"a": NaN}`, `{"a": "NaN"}`},
		{`{"a":Infinity,"b":-Infinity}`, `{"a":"Infinity","b":"-Infinity"}`},
		{`[NaN, [Infinity], -1, "NaN"]`, `["NaN", ["Infinity"], -1, "NaN"]`},
		{`{"NaN": "Infinity \" NaN \\", "b": NaN}`, `{"NaN": "Infinity \" NaN \\", "b": "NaN"}`},
		{`NaN`, `"NaN"`},
		{`{"a": 1}`, `{"a": 1}`},
	} {
		got := JSON([]byte(c.in))
		if string(got) != c.want {
			t.Errorf("JSON(%s) = %s, want %s", c.in, got, c.want)
		}
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(c.want), &b) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("JSON(%s) = %s is not the JSON of %s", c.in, got, c.want)
		}
	}
	for _, bad := range []string{`{"a": 1NaN}`, `{"a": nan}`, `{NaN: 1}x`, `"NaN`, `{"a": "Infinity\`, `+Infinity`, `--Infinity`} {
		if got := JSON([]byte(bad)); json.Valid(got) {
			t.Errorf("JSON(%s) = %s is valid", bad, got)
		}
	}
}
