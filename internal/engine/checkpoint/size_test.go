package checkpoint_test

import (
	"os"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

func TestSize(t *testing.T) {
	c, err := checkpoint.Open("../../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := os.Stat(c.Files()[0])
	if err != nil {
		t.Fatal(err)
	}
	parameters, bytes := c.Size()
	if bytes != st.Size() || bytes < 2*parameters || parameters < bytes/3 { // bf16, and a header
		t.Errorf("%d parameters in %d bytes; the file has %d", parameters, bytes, st.Size())
	}
}
