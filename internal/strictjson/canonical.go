package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Canonical is one spelling for all documents that are equal as JSON: without white space,
// with names in order, and with one spelling of each string and of each number. Of members
// with one name the last one counts.
func Canonical(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("strictjson: %w", err)
	}
	out, err := json.Marshal(canonicalNumbers(v)) // it sorts names
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
