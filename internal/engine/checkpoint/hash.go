package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Hash identifies the model: the parsed config, every byte of every needed tensor with its name,
// type and shape, and the version of the arithmetic (tensor.Arithmetic). Nodes of one version agree
// on copies of one checkpoint, however the tensors are split into files. One different byte gives
// another hash.
func (c *Checkpoint) Hash() string { return c.hash }

// identity computes Hash from the files, and returns the digests that it is made of.
func (c *Checkpoint) identity(ctx context.Context) (hash string, sums []byte, err error) {
	pieces := c.pieces()
	if sums, err = c.digests(ctx, pieces); err != nil {
		return "", nil, err
	}
	h, at := c.startHash(fmt.Sprintf("shoal checkpoint 2, arithmetic %d", tensor.Arithmetic)), 0
	for _, s := range c.needed {
		t := c.at[s.Name].Tensor
		hashTensor(h, t)
		for _, part := range t.regions() {
			n := pieceCount(len(part.data)) * sha256.Size
			fmt.Fprintf(h, "%d bytes\n", len(part.data))
			h.Write(sums[at : at+n])
			at += n
		}
	}
	return hex.EncodeToString(h.Sum(nil)), sums, nil
}

// sampleTensor hashes all bytes of a small tensor, and samples of a larger one. A SwiftKV adapter
// identifies its base by these samples, as train/swiftkv.py writes them. Hash does not use them.
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

// startHash starts with the config: the same bytes under another config are another model.
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
