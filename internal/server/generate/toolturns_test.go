package generate

import "testing"

// Arguments that are missing, null or empty are an empty object, as vLLM has it.
func TestPlainCalls(t *testing.T) {
	const want = `{"name": "f", "parameters": {}}`
	for _, args := range []string{``, `, "arguments": null`, `, "arguments": ""`, `, "arguments": " "`, `, "arguments": "{}"`} {
		if got := plainCalls([]byte(`[{"function": {"name": "f"` + args + `}}]`)); got != want {
			t.Errorf("%s: %s", args, got)
		}
	}
}
