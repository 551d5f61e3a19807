package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// A SwiftKV adapter is a folder with the tensors of a checkpoint that distillation changed:
// norm_swiftkv and the later layers' projections, under the names of Snowflake's layout. It also
// names its base checkpoint. train/swiftkv.py writes adapters.
const (
	adapterFile    = "swiftkv.json"
	adapterWeights = "swiftkv.safetensors"
	maxAdapterFile = 1 << 20
)

// OpenSwiftKV opens a checkpoint and, unless adapter is empty, its SwiftKV adapter. An adapter of
// another checkpoint is refused with a reason.
func OpenSwiftKV(dir, adapter string) (*Checkpoint, error) {
	if adapter == "" {
		return Open(dir)
	}
	if _, ok := randomShape(dir); ok {
		return nil, &model.Error{File: adapter, Kind: model.ErrMismatch, Detail: "an adapter of a checkpoint; random weights have none: write " +
			RandomPrefix + "SHAPE,swiftkv=0.5"}
	}
	return openAt(&Checkpoint{Dir: dir, adapter: adapter})
}

// adapt adds an adapter to the mapped tensors.
func (c *Checkpoint) adapt(dir string) error {
	path := filepath.Join(dir, adapterFile)
	text, err := readSmall(path, maxAdapterFile)
	if errors.Is(err, model.ErrMissing) {
		return &model.Error{File: dir, Kind: model.ErrNoCheckpoint, Detail: "no SwiftKV adapter: there is no " + adapterFile}
	} else if err != nil {
		return err
	}
	f, err := model.ParseFields(path, text)
	if err != nil {
		return err
	}
	refuse := func(format string, args ...any) error {
		return &model.Error{File: path, Kind: model.ErrMismatch, Detail: fmt.Sprintf(format, args...)}
	}
	if why := c.Config.Rewirable(); why != "" || c.Config.SwiftKV.Layers > 0 {
		if why == "" {
			why = "it is a SwiftKV model already"
		}
		return refuse("%s cannot take a SwiftKV adapter: %s", c.Dir, why)
	}
	var base string
	f.Get("base", &base, "a SHA-256")
	if sum, err := hex.DecodeString(base); err != nil || len(sum) != sha256.Size {
		f.Fail("base", model.ErrFormat, "%q is not a SHA-256", model.Clip(base))
	}
	if f.Err != nil {
		return f.Err
	}
	if c.fetch == nil { // otherwise the hash of the whole was compared
		if err := c.check(); err != nil {
			return err
		}
		if have := c.base(); have != base {
			return refuse("is an adapter of the checkpoint with base identity %.12s; %s is %.12s: distil one of it, or serve the other",
				base, c.Dir, have)
		}
	}
	model.ReadSwiftKV(f, &c.Config)
	if f.Err != nil {
		return f.Err
	}
	if c.Config.SwiftKV.Layers == 0 {
		return refuse("num_key_value_layers is %d, as many as %s has: nothing is rewired", c.Config.Layers, c.Dir)
	}
	c.nested = false
	c.sideFiles = append(c.sideFiles, path)
	return c.mapShard(filepath.Join(dir, adapterWeights))
}

// base identifies a checkpoint without its config, so that a script can compute it: names, types,
// shapes and samples of its tensors, sorted by name.
func (c *Checkpoint) base() string {
	specs := c.Config.Tensors()
	slices.SortFunc(specs, func(a, b model.Spec) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	h.Write([]byte("shoal swiftkv base 1\n"))
	for _, s := range specs {
		t := c.must(s.Name)
		fmt.Fprintf(h, "%q %s %v\n", t.Name, strings.ToUpper(t.Stored()), t.Shape)
		sampleTensor(h, t)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hasAdapter reports whether a folder of a partial checkpoint also holds an adapter.
func hasAdapter(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, adapterFile))
	return err == nil
}

// SideFiles lists small files of the checkpoint that are in another folder.
func (c *Checkpoint) SideFiles() []string { return slices.Clone(c.sideFiles) }
