package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTopTokensKeepOrder(t *testing.T) {
	top := &topTokens{}
	top.add("b", -1)
	top.add("a<", -2)
	top.add("b", -0.5)
	b, err := json.Marshal(top)
	if err != nil || !strings.HasPrefix(string(b), `{"b":-0.5,"a`) {
		t.Errorf("%s %v", b, err)
	}
}
