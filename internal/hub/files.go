package hub

import (
	"cmp"
	"fmt"
	"github.com/shoal-llm/shoal/internal/options"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// File is a file of a repository, as its listing states it.
type File struct {
	Name   string
	Size   int64  // -1: not stated
	Digest Digest // "": not stated
}

// Files that a model is read from, other than its weights.
var smallFiles = map[string]bool{
	"config.json": true, "generation_config.json": true, "tokenizer.json": true, "tokenizer_config.json": true,
	"tokenizer.model": true, "special_tokens_map.json": true, "added_tokens.json": true, "vocab.json": true,
	"vocab.txt": true, "merges.txt": true, "chat_template.jinja": true, "chat_template.json": true,
	"adapter_config.json": true, "swiftkv.json": true, "hf_quant_config.json": true,
	"modules.json": true, "config_sentence_transformers.json": true,
	"spiece.model": true, "sentencepiece.bpe.model": true, "tiktoken.model": true, "qwen.tiktoken": true,
}

const (
	weightsFile   = "model.safetensors"
	indexFile     = "model.safetensors.index.json"
	adapterFile   = "adapter_model.safetensors"
	templates     = "additional_chat_templates"
	maxIndexBytes = 64 << 20
)

var (
	shardName = regexp.MustCompile(`^model-([0-9]{5})-of-([0-9]{5})\.safetensors$`)
	// moduleFile is a file of a module of sentence-transformers: 1_Pooling/config.json, 2_Dense/model.safetensors.
	moduleFile = regexp.MustCompile(`^[0-9]_[A-Za-z]+/(config\.json|model\.safetensors)$`)
	splitName  = regexp.MustCompile(`(?i)^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)
)

// choice is the result of Choose for a listing.
type choice struct {
	files []File
	index string // the file that names the other weights; read it and ask shards
	gguf  string // the .gguf file to open; "": the folder is opened
}

// choose selects the files that this model needs. It never selects copies of the weights
// for other programs: original/, onnx/, .bin, .h5 and so on.
func choose(r Ref, all []File) (choice, error) {
	if r.File != "" || r.Quant != "" {
		return chooseGGUF(r, all)
	}
	var c choice
	has := map[string]bool{}
	for _, f := range all {
		has[f.Name] = true
		dir, base := path.Split(f.Name)
		if dir == "" && smallFiles[base] || dir == templates+"/" && path.Ext(base) == ".jinja" || moduleFile.MatchString(f.Name) {
			c.files = append(c.files, f)
		}
	}
	weights := func(keep func(name string) bool) bool {
		n := len(c.files)
		for _, f := range all {
			if keep(f.Name) {
				c.files = append(c.files, f)
			}
		}
		return len(c.files) > n
	}
	switch {
	case has[weightsFile]:
		weights(func(n string) bool { return n == weightsFile })
	case has[indexFile]:
		weights(func(n string) bool { return n == indexFile })
		c.index = indexFile
	case weights(shardName.MatchString):
		return c, wholeShards(r, all)
	case has[adapterFile]:
		weights(func(n string) bool { return n == adapterFile })
	case len(ggufFiles(all)) > 0:
		return chooseGGUF(r, all)
	default:
		return c, noWeights(r, all)
	}
	if !has["config.json"] && !has["adapter_config.json"] {
		return c, fmt.Errorf("%w: %s has weights but no config.json, which must describe them", ErrIncomplete, r)
	}
	return c, nil
}

// shards returns the files that an index names. All of them must be in the repository.
func shards(r Ref, index []string, all []File) ([]File, error) {
	at := map[string]File{}
	for _, f := range all {
		at[f.Name] = f
	}
	var out []File
	var missing []string
	for _, name := range index {
		if f, ok := at[name]; ok {
			out = append(out, f)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s names files that %s does not have; the upload may still be running: try again later, or name an older "+
			"revision with @%s", ErrIncomplete, indexFile, r, listed(missing, 5))
	}
	return out, nil
}

// wholeShards checks the numbers of parts that have no index.
func wholeShards(r Ref, all []File) error {
	have, want := map[int]bool{}, 0
	for _, f := range all {
		if m := shardName.FindStringSubmatch(f.Name); m != nil {
			no, _ := strconv.Atoi(m[1])
			have[no] = true
			n, _ := strconv.Atoi(m[2])
			want = max(want, n)
		}
	}
	for i := 1; i <= want; i++ {
		if !have[i] {
			return fmt.Errorf("%w: part %d of %d of the weights is not in %s; the upload may still be running: try again later",
				ErrIncomplete, i, want, r)
		}
	}
	return nil
}

// model is one GGUF model of a repository: one file, or all parts of a split one.
type model struct {
	stem  string // its path without the number of the part and .gguf
	parts []File
	of    int // number of parts by their names
}

func (m model) size() (n int64) {
	for _, p := range m.parts {
		n += max(p.Size, 0)
	}
	return n
}

// ggufFiles groups the .gguf files that are models; projectors and importance matrices
// are none.
func ggufFiles(all []File) []model {
	at := map[string]int{}
	var out []model
	for _, f := range all {
		if !isGGUF(f.Name) {
			continue
		}
		low := strings.ToLower(path.Base(f.Name))
		if strings.Contains(low, "mmproj") || strings.Contains(low, "imatrix") {
			continue
		}
		stem, of := f.Name[:len(f.Name)-len(".gguf")], 1
		if m := splitName.FindStringSubmatch(f.Name); m != nil {
			stem = m[1]
			of, _ = strconv.Atoi(m[3])
		}
		key := fmt.Sprint(stem, "\x00", of)
		i, ok := at[key]
		if !ok {
			i, at[key] = len(out), len(out)
			out = append(out, model{stem: stem, of: of})
		}
		out[i].parts = append(out[i].parts, f)
	}
	for i := range out {
		slices.SortFunc(out[i].parts, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(out, func(a, b model) int { return cmp.Compare(a.stem, b.stem) })
	return out
}

// chooseGGUF selects one GGUF model.
func chooseGGUF(r Ref, all []File) (choice, error) {
	models := ggufFiles(all)
	var fit []model
	for _, m := range models {
		switch {
		case r.File != "":
			if slices.ContainsFunc(m.parts, func(f File) bool { return f.Name == r.File }) {
				fit = append(fit, m)
			}
		case r.Quant == "" || namesQuant(m.stem, r.Quant):
			fit = append(fit, m)
		}
	}
	if len(fit) > 1 && r.Quant != "" { // UD-Q4_K_M is another quantization than Q4_K_M
		plain := slices.DeleteFunc(slices.Clone(fit), func(m model) bool { return namesQuant(m.stem, "UD-"+r.Quant) })
		if len(plain) == 1 {
			fit = plain
		}
	}
	switch {
	case len(models) == 0:
		return choice{}, fmt.Errorf("%w: %s has no .gguf file: name it without :%s", ErrNotFound, r.Repo, r.File+r.Quant)
	case len(fit) == 0 && r.File != "":
		return choice{}, fmt.Errorf("%w: %s has no file %s; it has%s", ErrNotFound, r.Repo, r.File, listed(describe(r, models), 40))
	case len(fit) == 0:
		return choice{}, fmt.Errorf("%w: no .gguf file of %s has %s in its name; it has%s", ErrNotFound,
			r.Repo, r.Quant, listed(describe(r, models), 40))
	case len(fit) > 1:
		return choice{}, fmt.Errorf("%w: %s has %d GGUF files; name one of%s", ErrAmbiguous, r, len(fit), listed(describe(r, fit), 40))
	}
	m := fit[0]
	if len(m.parts) != m.of {
		return choice{}, fmt.Errorf("%w: %d of the %d parts of %s are in %s; the upload may still be running: try again later",
			ErrIncomplete, len(m.parts), m.of, m.stem, r.Repo)
	}
	return choice{files: m.parts, gguf: m.parts[0].Name}, nil
}

// describe writes models as references, with sizes.
func describe(r Ref, models []model) []string {
	out := make([]string, len(models))
	for i, m := range models {
		own := r
		own.Quant, own.File = "", m.parts[0].Name
		out[i] = own.String()
		if n := m.size(); n > 0 {
			out[i] += " (" + options.SizeText(n) + ")"
		}
	}
	return out
}

// namesQuant reports whether a word of the path is the quantization, whole and in any case:
// Q4_K does not match Q4_K_M.
func namesQuant(stem, quant string) bool {
	stem, quant = strings.ToLower(stem), strings.ToLower(quant)
	for at := 0; ; {
		i := strings.Index(stem[at:], quant)
		if i < 0 {
			return false
		}
		begin, end := at+i, at+i+len(quant)
		if (begin == 0 || strings.ContainsRune("-./", rune(stem[begin-1]))) &&
			(end == len(stem) || strings.ContainsRune("-./", rune(stem[end]))) {
			return true
		}
		at = begin + 1
	}
}

// noWeights returns the error for a repository that has no weights which Shoal reads.
func noWeights(r Ref, all []File) error {
	var torch, other []string
	for _, f := range all {
		switch path.Ext(f.Name) {
		case ".bin", ".pth", ".pt":
			torch = append(torch, f.Name)
		case ".safetensors", ".onnx", ".h5", ".msgpack", ".tflite", ".mlmodel", ".nemo", ".ot":
			other = append(other, f.Name)
		}
	}
	if len(torch) > 0 {
		return fmt.Errorf("%w: %s has only PyTorch files (%s). Convert it, then use the new folder:\n"+
			"  python -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "+
			"M.from_pretrained('%s', torch_dtype='auto').save_pretrained('converted'); T.from_pretrained('%s').save_pretrained('converted')\"",
			ErrUnsupported, r, torch[0], r.Repo, r.Repo)
	}
	if len(other) > 0 {
		return fmt.Errorf("%w: %s has neither %s, %s nor a .gguf file; it has%s", ErrUnsupported, r, weightsFile, indexFile, listed(other, 5))
	}
	return fmt.Errorf("%w: %s has no weights; its %d files are for something else than a language model", ErrUnsupported, r, len(all))
}
