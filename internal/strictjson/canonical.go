package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Canonical returns the same bytes for all documents that are equal as JSON: without white space,
// with sorted names, and with one spelling of each string and number. Of members with the same name
// the last one counts.
func Canonical(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("strictjson: %w", err)
	}
	out, err := json.Marshal(canonicalNumbers(v)) // sorts names
	if err != nil {
		return nil, fmt.Errorf("strictjson: %w", err)
	}
	return out, nil
}

// canonicalNumbers replaces the numbers of a value in place.
func canonicalNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			v[name] = canonicalNumbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = canonicalNumbers(x)
		}
	case json.Number:
		return json.Number(canonicalNumber(v.String()))
	}
	return v
}
