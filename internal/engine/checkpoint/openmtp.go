package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// mtpFile holds the layer if it is not in the model's own files.
const mtpFile = "mtp.safetensors"

// IsMTP reports whether a folder holds only the multi-token prediction layer of a model.
func IsMTP(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, mtpFile))
	return err == nil
}

// OpenMTP finds the multi-token prediction layer of a checkpoint: in its own files, or in folder
// dir if that is given. The tensors belong to the returned checkpoint, which is c itself or must be
// closed before c.
func (c *Checkpoint) OpenMTP(dir string) (*Checkpoint, error) {
	if c.Config.Latent.Rank == 0 || c.Config.Latent.Index.Heads > 0 || c.random != nil || c.gguf {
		return nil, &model.Error{File: c.Dir, Kind: model.ErrUnsupported,
			Detail: "multi-token prediction is read for DeepSeek V3's layout in safetensors"}
	}
	m := c
	if dir != "" {
		m = &Checkpoint{Dir: dir, Config: c.Config, at: map[string]place{}}
		if err := m.mapShard(filepath.Join(dir, mtpFile)); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	specs := c.Config.MTPTensors()
	for _, want := range specs {
		have, err := m.Tensor(want.Name)
		if err == nil && !slices.Equal(have.Shape, want.Shape) {
			err = &model.Error{File: m.Dir, Tensor: want.Name, Kind: model.ErrMismatch,
				Detail: fmt.Sprintf("has shape %v; the model in %s requires %v", have.Shape, c.Dir, want.Shape)}
		}
		if err != nil {
			if m != c {
				err = errors.Join(err, m.Close())
			}
			return nil, err
		}
	}
	if m != c {
		if err := m.identify(specs); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}
