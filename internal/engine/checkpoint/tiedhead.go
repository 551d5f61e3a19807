package checkpoint

import (
	"bytes"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// checkTiedHead refuses a head that differs from the embedding although the config ties them. transformers 5 uses
// such a head, transformers 4 and vLLM use the embedding. A partial checkpoint has no bytes to compare: those of
// the whole one were compared.
func (c *Checkpoint) checkTiedHead() error {
	head, ok := c.at[model.Head]
	embedding := c.at[model.Embedding]
	if !ok || !c.Config.Tied || c.Config.Headless || c.fetch != nil || head.fill != nil || embedding.fill != nil ||
		head.DType != embedding.DType || !head.weight || !slices.Equal(head.Shape, embedding.Shape) {
		return nil
	}
	a, b := make([]byte, pieceBytes), make([]byte, pieceBytes)
	for at := 0; at < len(head.Data); at += pieceBytes {
		n := min(pieceBytes, len(head.Data)-at)
		for _, part := range []struct {
			place
			buf []byte
		}{{head, a}, {embedding, b}} {
			p := piece{part.home, part.home.offset(part.Data) + int64(at), n}
			if err := p.read(part.buf); err != nil {
				return err
			}
		}
		if !bytes.Equal(a[:n], b[:n]) {
			return &model.Error{File: head.path, Tensor: model.Head, Kind: model.ErrMismatch, Detail: "differs from " + model.Embedding +
				", but tie_word_embeddings says that they are one: set it to false in " + model.ConfigFile + " to use this head, or remove the tensor"}
		}
	}
	return nil
}
