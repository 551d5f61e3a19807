package cli

import (
	"encoding/json"
	"io"
)

// printJSON prints one value as indented JSON, for --json.
func printJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
