package cli

import (
	"io"
	"log/slog"
)

func (f logFlags) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // kong's enum admits only known names
	o := &slog.HandlerOptions{Level: level}
	if f.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
