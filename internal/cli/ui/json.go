package ui

import (
	"encoding/json"
	"io"
)

// PrintJSON prints one value as indented JSON, for --json.
func PrintJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
