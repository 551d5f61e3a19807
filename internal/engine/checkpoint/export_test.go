package checkpoint

import (
	"context"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
)

// ReadFP8 reads all elements of one FP8 tensor from a safetensors file's bytes.
func ReadFP8(file []byte, name string, block [2]int) ([]float32, error) {
	n := uint64(0)
	for i := range 8 {
		n |= uint64(file[i]) << (8 * i)
	}
	entries, err := readHeader(file[8:8+n], int64(len(file))-8-int64(n))
	if err != nil {
		return nil, err
	}
	settings, err := quantform.Read(fmt.Appendf(nil, `{"quant_method": "fp8", "weight_block_size": [%d, %d]}`, block[0], block[1]))
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{at: map[string]place{}, Config: model.Config{Quantized: settings}}
	for _, e := range entries {
		c.at[e.Name] = place{stored: e.Stored, Tensor: Tensor{Name: e.Name, Shape: e.Shape, Data: file[8+n:][e.Begin:e.End:e.End]}}
	}
	if err := c.takeForms(); err != nil {
		return nil, err
	}
	t := c.at[name].Tensor
	var all []float32
	row := make([]float32, t.Cols())
	for r := range t.Rows() {
		t.Row(row, r, 0, len(row))
		all = append(all, row...)
	}
	return all, nil
}

// LlamaLayer names all tensors that a layer can have.
func LlamaLayer(i int) model.LayerSpec {
	return model.DecoderLayer(&model.Config{QKVBias: true, OutBias: true, MLPBias: true, QKNorm: true}, i)
}

// Verify opens the folder, which checks its structure, and reads every weight.
func Verify(dir string) (*Report, error) {
	c, err := Open(dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Verify(context.Background(), nil)
}

// PieceBytes is the number of bytes that Hash covers.
func (c *Checkpoint) PieceBytes() (n int64) {
	for _, p := range c.pieces() {
		n += int64(p.n)
	}
	return n
}

// Summed is the number of bytes of weights that were read for digests.
func Summed() int64 { return summed.Load() }
