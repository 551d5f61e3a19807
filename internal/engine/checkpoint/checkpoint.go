package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// File names of a Hugging Face folder.
const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
)

// Limits of a checkpoint in several files.
const (
	maxIndexBytes = 64 << 20
	maxShards     = 1 << 12
)

// Checkpoint is an open model folder: its config and its tensors, mapped read only. All methods
// except Close may be called concurrently.
type Checkpoint struct {
	Dir    string
	Config model.Config

	files   []string
	sources []*weightFile // by index in files
	close   []func() error
	at      map[string]place
	hash    string
	needed  []model.Spec // the tensors that hash covers

	life      context.Context // ends with Close
	end       context.CancelFunc
	recheck   sync.Mutex // held while files are reread; guards the fields below
	refused   error      // the error of the files in state refusedAt
	refusedAt Mark       // see refused

	// OnRecheck, if not nil, is called with the result for a file that changed: nil if it holds the
	// same bytes. Set it before using the checkpoint.
	OnRecheck func(file string, err error)

	gguf   bool // from a GGUF file
	nested bool // the folder holds more than the decoder, see nested.go
	body   bool // names of tensors lack "model.", see headless.go
	closed atomic.Bool

	adapter   string   // folder of a SwiftKV adapter; empty: none
	sideFiles []string // files of the adapter

	heads    map[string]int64 // by file: bytes before the tensors; missing: the whole file
	fetch    Fetcher          // for a partial checkpoint
	fetching context.Context  // set while it is being opened

	random    map[string]model.Spec // tensors of a random checkpoint, instead of files
	noiseOnce sync.Once
	noise     []float32
}

// place is a tensor and its file.
type place struct {
	path   string
	offset int64  // offset in the file; 0: unknown
	stored string // type as named in the file
	weight bool   // the type is possible for a weight
	Tensor
}

// Open reads a Hugging Face folder, a .gguf file, or a folder with one such file. It reads the
// folder's config, maps its weights and checks every tensor that the architecture needs: its
// presence, shape, type and extent in the file. The error lists all problems, not only the first.
// Weight files are model.safetensors, or those in model.safetensors.index.json.
//
// Open reads all weights once, for Hash, unless an earlier Open has cached their digests in the
// user's cache folder. "random:SHAPE" instead of a folder names a shape with random weights, see
// Random.
func Open(dir string) (*Checkpoint, error) {
	if name, ok := randomShape(dir); ok {
		return Random(name)
	}
	return openAt(&Checkpoint{Dir: dir})
}

func openAt(c *Checkpoint) (*Checkpoint, error) {
	dir, err := layout.Locate(filepath.Clean(c.Dir))
	if err != nil {
		return nil, &model.Error{File: c.Dir, Kind: model.ErrNoCheckpoint, Detail: err.Error()}
	}
	c.Dir, c.at = dir, map[string]place{}
	fault := mmap.Guard(func() { err = c.open() })
	if fault != nil {
		err = &model.Error{File: c.Dir, Kind: model.ErrChanged, Detail: "a weight file was truncated while it was opened"}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Checkpoint) open() error {
	file, ok, err := isGGUF(c.Dir)
	switch {
	case err != nil:
		return err
	case ok && c.adapter != "":
		return &model.Error{File: c.adapter, Kind: model.ErrMismatch,
			Detail: "a SwiftKV adapter goes with the folder that it was distilled from, not with a GGUF file"}
	case ok:
		return c.openGGUF(file)
	}
	if st, err := os.Stat(c.Dir); err != nil {
		return notThere(c.Dir, err, "; name a folder that holds "+model.ConfigFile+", or a .gguf file")
	} else if !st.IsDir() {
		return &model.Error{File: c.Dir, Kind: model.ErrNoCheckpoint, Detail: "not a directory; name the folder that holds " +
			model.ConfigFile + ", or a .gguf file"}
	}
	config, err := readSmall(filepath.Join(c.Dir, model.ConfigFile), model.MaxConfigBytes)
	if errors.Is(err, model.ErrMissing) {
		return &model.Error{File: c.Dir, Kind: model.ErrNoCheckpoint, Detail: "not a Hugging Face model folder: " +
			strings.TrimPrefix(err.Error(), "model: ")}
	} else if err != nil {
		return err
	}
	if config, err = withQuantFile(c.Dir, config); err != nil {
		return err
	}
	generation, err := readSmall(filepath.Join(c.Dir, model.GenerationFile), model.MaxConfigBytes)
	if err != nil && !errors.Is(err, model.ErrMissing) {
		return err
	}
	if c.Config, err = model.ParseConfig(c.Dir, config, generation); err != nil {
		return err
	}
	c.nested = model.IsNested(config)
	if err := c.mapWeights(); err != nil {
		return err
	}
	if c.fetch != nil && hasAdapter(c.Dir) {
		c.adapter = c.Dir
	}
	if c.adapter != "" {
		if err := c.adapt(c.adapter); err != nil {
			return err
		}
	}
	c.dropHead()
	if err := c.splitQKV(); err != nil {
		return err
	}
	c.flattenNorms()
	if err := c.wantSmall(); err != nil {
		return err
	}
	if err := c.takeMXFP4(); err != nil {
		return err
	}
	if err := c.takeForms(); err != nil {
		return err
	}
	if err := c.splitSharedMLP(); err != nil {
		return err
	}
	arch, _ := model.Lookup(c.Config.Architecture)
	for from, to := range arch.Moved {
		if err := c.rename(from, to); err != nil {
			return err
		}
	}
	if err := c.takeStackedExperts(); err != nil {
		return err
	}
	if err := c.takeStackedBiases(); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := c.checkTiedHead(); err != nil {
		return err
	}
	c.readSinks()
	if c.Config.Quantized == nil && !statesDType(config) {
		c.Config.DType = c.must(c.Config.Tensors()[0].Name).DType
	}
	return c.identify(c.Config.Tensors())
}

// mapWeights opens model.safetensors, or all files of the index.
func (c *Checkpoint) mapWeights() error {
	single := filepath.Join(c.Dir, weightsFile)
	if _, err := os.Lstat(single); err == nil {
		return c.mapShard(single)
	}
	index, err := readSmall(filepath.Join(c.Dir, indexFile), maxIndexBytes)
	if errors.Is(err, model.ErrMissing) {
		return c.mapParts()
	} else if err != nil {
		return err
	}
	files, where, err := parseIndex(index)
	if err != nil {
		return &model.Error{File: filepath.Join(c.Dir, indexFile), Kind: model.ErrFormat, Detail: err.Error()}
	}
	var bad model.Problems
	for _, name := range files {
		if err := c.mapShard(filepath.Join(c.Dir, name)); err != nil {
			bad.List = append(bad.List, err)
		}
	}
	if err := bad.In(c.Dir); err != nil {
		return err
	}
	return c.checkIndex(where)
}

// mapParts opens the files of a checkpoint without an index by their names:
// model-00001-of-00002.safetensors and so on.
func (c *Checkpoint) mapParts() error {
	found, err := filepath.Glob(filepath.Join(escapeGlob(c.Dir), "model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors"))
	if err != nil || len(found) == 0 {
		return &model.Error{File: c.Dir, Kind: model.ErrMissing, Detail: "neither " + weightsFile + " nor " + indexFile + otherWeights(c.Dir)}
	}
	var no, parts int
	if _, err := fmt.Sscanf(filepath.Base(found[0]), "model-%d-of-%d.safetensors", &no, &parts); err != nil || parts < 1 || parts > maxShards {
		return &model.Error{File: found[0], Kind: model.ErrFormat, Detail: fmt.Sprintf("is a part of %d; want 1 to %d parts", parts, maxShards)}
	}
	for i := range parts {
		path := filepath.Join(c.Dir, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, parts))
		if err := c.mapShard(path); errors.Is(err, model.ErrMissing) {
			return &model.Error{File: c.Dir, Kind: model.ErrMissing,
				Detail: fmt.Sprintf("part %d of %d is missing: %s (and so is %s)", i+1, parts, path, indexFile)}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// escapeGlob returns a pattern that matches dir literally.
func escapeGlob(dir string) string {
	if runtime.GOOS == "windows" {
		return dir // patterns have no escapes on Windows
	}
	return globMeta.ReplaceAllString(dir, `\$0`)
}

var globMeta = regexp.MustCompile(`[\\*?\[]`)

func (c *Checkpoint) mapShard(path string) error {
	s, err := openShard(path)
	if err != nil {
		return err
	}
	home := c.addFile(s.Mapping, s.Close)
	head := int64(len(s.Mapping.Data) - len(s.data))
	if c.heads == nil {
		c.heads = map[string]int64{}
	}
	c.heads[path] = head
	for _, e := range s.entries {
		e.Name = c.ownName(e.Name)
		if old, ok := c.at[e.Name]; ok {
			return &model.Error{File: path, Tensor: e.Name, Kind: model.ErrFormat, Detail: "is also in " + old.path}
		}
		dt, ok := weightType[e.Stored]
		c.at[e.Name] = place{path, head + e.Begin, e.Stored, ok,
			Tensor{Name: e.Name, DType: dt, Shape: e.Shape, Data: s.data[e.Begin:e.End:e.End], home: home}}
	}
	return nil
}

// checkIndex checks that every tensor is in the file that the index names.
func (c *Checkpoint) checkIndex(where map[string]string) error {
	var names []string
	for name, file := range where {
		own := c.ownName(name)
		if p, ok := c.at[own]; !ok || filepath.Base(p.path) != file {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var bad model.Problems
	for _, name := range names {
		bad.List = append(bad.List,
			&model.Error{File: filepath.Join(c.Dir, indexFile), Tensor: name, Kind: model.ErrMissing, Detail: "is not in " + where[name]})
	}
	return bad.In(c.Dir)
}

// check compares the tensors with the architecture's list.
func (c *Checkpoint) check() error {
	var bad model.Problems
	arch, _ := model.Lookup(c.Config.Architecture)
	known := map[string]bool{}
	requested := c.requested()
	for _, want := range requested.Tensors() {
		known[want.Name] = true
		p, ok := c.at[want.Name]
		fail := func(kind error, format string, args ...any) {
			e := &model.Error{File: c.Dir, Tensor: want.Name, Kind: kind, Detail: fmt.Sprintf(format, args...)}
			if ok {
				e.File = p.path
			}
			bad.List = append(bad.List, e)
		}
		if !ok {
			fail(model.ErrMissing, "missing; %s needs it with shape %v", c.Config.Architecture, want.Shape)
			continue
		}
		if !p.weight {
			fail(model.ErrUnsupported,
				"is %s; supported are F32, BF16 and F16, and quantized forms with a quantization_config in config.json", p.stored)
		}
		if !slices.Equal(p.Shape, want.Shape) {
			fail(model.ErrMismatch, "has shape %v; %s requires %v", p.Shape, c.described(), want.Shape)
		}
	}
	for _, name := range c.names() {
		if c.nested && isTower(name) {
			continue
		}
		if !c.gguf && !known[name] && c.zeroBias(name, known) {
			delete(c.at, name)
			continue
		}
		// A block after the last one is not part of a GGUF file: dropAhead has removed known ones.
		further := c.gguf && model.AfterLast(&c.Config, name)
		// a GGUF file holds its model and nothing else
		if !known[name] && (further || arch.Beyond == nil || !arch.Beyond(&c.Config, name)) &&
			(c.gguf && !c.Config.AfterPooling(name) || !c.gguf && !arch.Extra(name) && !c.Config.Rewired(name)) {
			bad.List = append(bad.List, &model.Error{File: c.at[name].path, Tensor: name, Kind: model.ErrMismatch,
				Detail: fmt.Sprintf("is not part of the %s that %s describes; ignoring it would change the output", arch.Name, c.described())})
		}
	}
	return bad.In(c.Dir)
}

// zeroBias reports whether a tensor is the bias of a known matrix, and all its elements are zero. Old
// versions of AutoGPTQ gave one to every module. The bytes of a partial checkpoint are not here: those of
// the whole one were checked.
func (c *Checkpoint) zeroBias(name string, known map[string]bool) bool {
	module, ok := strings.CutSuffix(name, ".bias")
	p, of := c.at[name], c.at[module+".weight"]
	if !ok || !known[module+".weight"] || !p.weight || p.form != nil || len(of.Shape) != 2 || !slices.Equal(p.Shape, of.Shape[:1]) {
		return false
	}
	if c.fetch != nil {
		return true
	}
	row := make([]float32, p.Shape[0])
	p.Row(row, 0, 0, len(row))
	return !slices.ContainsFunc(row, func(v float32) bool { return v != 0 })
}

// requested returns the config with the number of layers reduced: only enough to name more tensors than the
// files hold. Without this limit, a few bytes of config can ask for a quarter of a million tensors.
func (c *Checkpoint) requested() model.Config {
	few, names := c.Config, 0
	for i := 0; i < c.Config.Layers && names <= len(c.at); i++ {
		few.Layers = i + 1
		if names++; c.Config.Sparse(i) {
			names += 3 * c.Config.MoE.Experts
		}
	}
	return few
}

// names lists all tensors of the files, sorted.
func (c *Checkpoint) names() []string { return slices.Sorted(maps.Keys(c.at)) }

// Extra lists the tensors of the files that the architecture does not need, sorted.
func (c *Checkpoint) Extra() []string {
	needed := map[string]bool{}
	for _, s := range c.Config.Tensors() {
		needed[s.Name] = true
	}
	return slices.DeleteFunc(c.names(), func(n string) bool { return needed[n] })
}

// Tensor returns a tensor by its name in the files. A tied head has none: use the embedding. Data
// points into the mapping and is invalid after Close.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	if c.closed.Load() {
		return Tensor{}, model.ErrClosed
	}
	if s, ok := c.random[name]; ok {
		return c.randomTensor(s), nil
	}
	p, ok := c.at[name]
	if !ok {
		return Tensor{}, &model.Error{File: c.Dir, Tensor: name, Kind: model.ErrMissing, Detail: "not in this checkpoint"}
	}
	if !p.weight {
		return Tensor{}, &model.Error{File: p.path, Tensor: name, Kind: model.ErrUnsupported,
			Detail: "is " + p.stored + "; weights are read from F32, BF16 or F16"}
	}
	return p.Tensor, nil
}

// must is Tensor for names that check has verified.
func (c *Checkpoint) must(name string) Tensor {
	t, err := c.Tensor(name)
	if err != nil {
		panic(err)
	}
	return t
}

// Files lists the weight files in the order in which they were opened.
func (c *Checkpoint) Files() []string { return slices.Clone(c.files) }

// Close unmaps the files. Afterwards no Data of a Tensor may be used. Close may be called twice.
func (c *Checkpoint) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	if c.end != nil {
		c.end()
	}
	c.recheck.Lock()
	defer c.recheck.Unlock()
	var errs []error
	for _, f := range c.close {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// parseIndex parses weight_map: the sorted files, and the file of each tensor. A file must be a
// plain name in the folder, so that a foreign index cannot make this process read other paths.
// (Symbolic links are followed; the local user made those, as the Hugging Face cache does.)
func parseIndex(data []byte) (files []string, where map[string]string, err error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := modelfile.Unmarshal(data, &index); err != nil {
		return nil, nil, fmt.Errorf("not an index: %w", err)
	}
	if n := len(index.WeightMap); n == 0 || n > safetensors.MaxTensors {
		return nil, nil, fmt.Errorf("weight_map of %d tensors; want 1..%d", n, safetensors.MaxTensors)
	}
	seen := map[string]bool{}
	for name, file := range index.WeightMap {
		if len(name) > safetensors.MaxNameBytes {
			return nil, nil, fmt.Errorf("tensor name %q of %d bytes, more than %d", model.Clip(name), len(name), safetensors.MaxNameBytes)
		}
		if seen[file] {
			continue
		}
		if !strings.HasSuffix(file, ".safetensors") || len(file) > 255 || strings.ContainsAny(file, "/\\:\x00") || !filepath.IsLocal(file) {
			return nil, nil, fmt.Errorf("tensor %q: %q is not the plain name of a .safetensors file in the folder",
				model.Clip(name), model.Clip(file))
		}
		if seen[file] = true; len(seen) > maxShards {
			return nil, nil, fmt.Errorf("more than %d files", maxShards)
		}
		files = append(files, file)
	}
	sort.Strings(files)
	return files, index.WeightMap, nil
}

// otherWeights names the weight files of other formats in the folder.
func otherWeights(dir string) string {
	for _, pattern := range []string{"*.safetensors", "*.bin", "*.gguf", "*.pth", "*.pt"} {
		got, _ := filepath.Glob(filepath.Join(escapeGlob(dir), pattern))
		switch {
		case len(got) > 0 && pattern == "*.safetensors":
			return "; there is " + filepath.Base(got[0]) + ": name it " + weightsFile + ", or add the index"
		case len(got) > 0:
			return "; there is " + filepath.Base(got[0]) +
				", which may run code when it is read. Convert the folder in Python: transformers.AutoModelForCausalLM.from_pretrained(DIR, " +
				"dtype=\"auto\").save_pretrained(DIR)"
		}
	}
	return ""
}

func statesDType(config []byte) bool {
	f, err := model.ParseFields("", config)
	return err == nil && (f.Has("dtype") || f.Has("torch_dtype"))
}

var weightType = map[string]tensor.DType{"F32": tensor.F32, "BF16": tensor.BF16, "F16": tensor.F16}

// described returns the file that describes the model: config.json, or the GGUF file.
func (c *Checkpoint) described() string {
	if c.gguf {
		return "its metadata"
	}
	return model.ConfigFile
}
