package checkpoint

import "testing"

// Gemma 4 cannot take a SwiftKV adapter for more reasons than its windows.
func TestGemma4IsNotRewirable(t *testing.T) {
	for _, name := range []string{"gemma4_e2b", "gemma4_31b"} {
		c, err := Open("../model/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		c.Config.Windows = nil
		if c.Config.Rewirable() == "" {
			t.Errorf("%s without windows: no reason", name)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
