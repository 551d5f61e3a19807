package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): a further layer of the same
// shape that predicts one more token. For position i, with the head's input h and the embedding e
// of the sampled token i+1:
//
//	x = Project [RMSNorm(e, EmbedNorm) | RMSNorm(h, HiddenNorm)]
//	x = Layer(x), with a cache of its own
//	logits of token i+2 = Head RMSNorm(x, FinalNorm)
//
// Embedding and head are the model's. Given its own x as h and its own token, it predicts further
// tokens, as in vLLM and SGLang. Published checkpoints hold it under the number after the last
// layer; others may have it in a separate folder.
type MTP struct {
	EmbedNorm, HiddenNorm string // (hidden)
	Project               Linear // (hidden, 2*hidden)
	Layer                 LayerSpec
	FinalNorm             string // (hidden)
}

// mtpFile holds the layer if it is not in the model's own files.
const mtpFile = "mtp.safetensors"

// MTP names the tensors of the multi-token prediction layer.
func (c *Config) MTP() MTP {
	p := fmt.Sprintf("model.layers.%d.", c.Layers)
	l := c.Layer(c.Layers)
	l.Cache = 0
	return MTP{EmbedNorm: p + "enorm.weight", HiddenNorm: p + "hnorm.weight", Project: linear(p+"eh_proj", false), Layer: l, FinalNorm: p + "shared_head.norm.weight"}
}

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
		return nil, &Error{File: c.Dir, Kind: ErrUnsupported, Detail: "multi-token prediction is read for DeepSeek V3's layout in safetensors"}
	}
	m := c
	if dir != "" {
		m = &Checkpoint{Dir: dir, Config: c.Config, at: map[string]place{}}
		if err := m.mapShard(filepath.Join(dir, mtpFile)); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	var s specs
	t := c.Config.MTP()
	s.add(t.EmbedNorm, c.Config.Hidden)
	s.add(t.HiddenNorm, c.Config.Hidden)
	s.linear(t.Project, c.Config.Hidden, 2*c.Config.Hidden)
	s.layer(&c.Config, &t.Layer, c.Config.Layers)
	s.add(t.FinalNorm, c.Config.Hidden)
	for _, want := range s {
		have, err := m.Tensor(want.Name)
		if err == nil && !slices.Equal(have.Shape, want.Shape) {
			err = &Error{File: m.Dir, Tensor: want.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; the model in %s wants %v", have.Shape, c.Dir, want.Shape)}
		}
		if err != nil {
			if m != c {
				err = errors.Join(err, m.Close())
			}
			return nil, err
		}
	}
	if m != c {
		if err := m.identify(s); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}
