package launch

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
)

func (f LogFlags) logger(w io.Writer) *slog.Logger { return slog.New(f.handler(w, f.level())) }

func (f LogFlags) level() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // kong's enum allows only known names
	return level
}

func (f LogFlags) handler(w io.Writer, level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: plainAttr}
	if f.LogJSON {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// plainAttr formats structs, maps and slices as JSON. The text handler would use Go syntax.
func plainAttr(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	v := a.Value.Any()
	switch v.(type) {
	case nil, error, fmt.Stringer, encoding.TextMarshaler, json.Marshaler, []byte, *slog.Source:
		return a
	}
	switch reflect.Indirect(reflect.ValueOf(v)).Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		if text, err := json.Marshal(v); err == nil {
			a.Value = slog.AnyValue(json.RawMessage(text))
		}
	}
	return a
}
