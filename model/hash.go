package model

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"strings"

	"github.com/shoal-llm/shoal/tensor"
)

// Hash identifies the model by what can be read at once: the config as it was
// understood, and every needed tensor's name, type, shape and samples of its
// bytes (small tensors whole, of the others four stretches of 64 bytes); and by
// the version of the arithmetic (tensor.Arithmetic). Two nodes of one version that
// open copies of one checkpoint agree, however the tensors are split into files;
// another training run differs. A damaged byte between the samples does not show
// here: Verify reads them all.
func (c *Checkpoint) Hash() string { return c.hash }

// Stamp tells one state of the files on this machine from another: their sizes
// and times of change. For what is kept on this machine alone, beside Hash.
func (c *Checkpoint) Stamp() string {
	if c.fetch != nil {
		return "fetched" // every byte was checked; the files change as more comes
	}
	var b strings.Builder
	for _, path := range c.files {
		if st, err := os.Stat(path); err == nil {
			fmt.Fprintf(&b, "%d@%d ", st.Size(), st.ModTime().UnixNano())
		}
	}
	return b.String()
}

func (c *Checkpoint) identity() string {
	h := c.startHash(fmt.Sprintf("shoal checkpoint sample 1, arithmetic %d", tensor.Arithmetic))
	for _, s := range c.Config.Tensors() {
		t := c.must(s.Name)
		hashTensor(h, t)
		if t.scales != nil {
			fmt.Fprintf(h, "scales %v\n", sha256.Sum256(t.scales.data))
		}
		sampleTensor(h, t)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sampleTensor adds all bytes of a small tensor, of another some.
func sampleTensor(h hash.Hash, t Tensor) {
	const whole, stretch, stretches = 16 << 10, 64, 4
	for _, part := range t.stored() {
		if len(part.Data) <= whole {
			h.Write(part.Data)
			continue
		}
		for i := range stretches {
			at := (len(part.Data) - stretch) / (stretches - 1) * i
			h.Write(part.Data[at : at+stretch])
		}
	}
}

// startHash begins with the config: the same bytes under another config are
// another model.
func (c *Checkpoint) startHash(label string) hash.Hash {
	config, err := json.Marshal(c.Config)
	if err != nil {
		panic(err) // plain numbers and strings, all finite
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", label, config)
	return h
}

func hashTensor(h hash.Hash, t Tensor) {
	fmt.Fprintf(h, "%q %s %v\n", t.Name, t.Stored(), t.Shape)
}
