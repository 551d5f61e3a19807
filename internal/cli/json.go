package cli

import (
	"encoding/json"
	"io"
)

// printJSON is what --json prints: indented, one value.
func printJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
