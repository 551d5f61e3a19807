package launch

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/options"
)

// modelsFlag selects the models of a cluster; the default is the bundled one.
type modelsFlag struct {
	Model   []string `short:"m" sep:";" env:"SHOAL_MODEL" placeholder:"MODEL" help:"Model: a folder, a .gguf file, a LoRA adapter, or org/name of a hub, which is pulled if necessary; shoal pull --help lists all forms (default: the bundled model). Commands that serve take several: repeat the flag, with settings of one as MODEL,KEY=VALUE (docs/several-models.md)."`
	SwiftKV string   `name:"swiftkv" type:"path" placeholder:"DIR" help:"Folder of a SwiftKV adapter for the checkpoint. Prompt tokens then skip the later layers. The result is a different model with its own hash."`
}

// oneModel returns the flag for one checkpoint.
func oneModel(path string) []string {
	if path == "" {
		return nil
	}
	return []string{path}
}

// modelSettings are the settings that --model takes for one of several models: rows of the table of
// options, and the draft model.
type modelSettings struct {
	cluster.ServeConfig
	Draft string
}

// notOfAModel lists the fields of cluster.ServeConfig that are settings of the whole cluster.
var notOfAModel = []string{"model", "shares", "cards", "load-deadline", "sync-deadline", "trial-rounds", "tracer", "logger"}

// modelKeys returns the fields of settings by the names that --model takes.
func modelKeys(settings *modelSettings) map[string]reflect.Value {
	out := map[string]reflect.Value{"draft": reflect.ValueOf(&settings.Draft).Elem()}
	of := reflect.ValueOf(&settings.ServeConfig).Elem()
	for i := range of.NumField() {
		if f := of.Type().Field(i); f.IsExported() && !slices.Contains(notOfAModel, options.NameOf(f)) {
			out[options.NameOf(f)] = of.Field(i)
		}
	}
	return out
}

// modelSpec is a parsed value of --model.
type modelSpec struct {
	word     string // names the model; "": the bundled one
	settings []string
	path     string // once it is found; "": not yet, or the weights come from other nodes
}

var settingMark = regexp.MustCompile(`,([a-z][a-z0-9-]*)=`)

// parseModel parses MODEL,KEY=VALUE,... A comma before another word than a known key belongs to the value
// before it, such as the parameters of a cache policy.
func parseModel(text string) (modelSpec, error) {
	known := modelKeys(&modelSettings{})
	var cuts [][]int
	for _, at := range settingMark.FindAllStringSubmatchIndex(text, -1) {
		key := text[at[2]:at[3]]
		if _, ok := known[key]; ok {
			cuts = append(cuts, at)
		} else if len(cuts) == 0 && !ui.Exists(text) {
			return modelSpec{}, fmt.Errorf("--model %s: a model has no setting %q; known are %s", text, key,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	spec := modelSpec{word: text}
	for i, at := range cuts {
		end := len(text)
		if i+1 < len(cuts) {
			end = cuts[i+1][0]
		}
		if i == 0 {
			spec.word = text[:at[0]]
		}
		spec.settings = append(spec.settings, text[at[2]:end])
	}
	return spec, nil
}

// apply adds the settings of a model to those of all models.
func (m *modelSpec) apply(to *modelSettings) error {
	fields := modelKeys(to)
	fresh := map[string]bool{}
	for _, s := range m.settings {
		key, value, _ := strings.Cut(s, "=")
		f := fields[key]
		if list := f.Kind() == reflect.Slice || f.Kind() == reflect.Map; list && !fresh[key] { // it replaces the common value
			f.SetZero()
		} else if fresh[key] && !list {
			return fmt.Errorf("--model %s: %q is set twice", m.word, key)
		}
		fresh[key] = true
		if err := options.Set(f, value); err != nil {
			return fmt.Errorf("--model %s: %s=%s: %w", m.word, key, value, err)
		}
	}
	return nil
}

// set replaces a setting; value "" removes it.
func (m *modelSpec) set(key, value string) {
	m.settings = slices.DeleteFunc(slices.Clone(m.settings), func(s string) bool { return strings.HasPrefix(s, key+"=") })
	if value != "" {
		m.settings = append(m.settings, key+"="+value)
	}
}

// text returns the value of --model that names the found path with the settings.
func (m *modelSpec) text() string {
	return strings.Join(append([]string{cmp.Or(m.path, m.word)}, m.settings...), ",")
}

// specs parses all values of --model. There is always one.
func (f *modelsFlag) specs() ([]modelSpec, error) {
	if len(f.Model) == 0 {
		return []modelSpec{{}}, nil
	}
	var out []modelSpec
	for _, text := range f.Model {
		spec, err := parseModel(text)
		if err != nil {
			return nil, err
		}
		out = append(out, spec)
	}
	return out, nil
}

// reference returns a reference of the hub for the only model, which other machines can pull; "" for
// several models, which they fetch from this one.
func (f *modelsFlag) reference(path string) string {
	if all, err := f.specs(); err == nil && len(all) == 1 {
		return models.ModelReference(all[0].word, path)
	}
	return ""
}

// find returns the specs with the paths of their models, which it pulls if necessary.
func (f *modelsFlag) find(e *ui.Env) ([]modelSpec, error) {
	all, err := f.specs()
	for i := range all {
		if err == nil {
			all[i].path, err = models.ModelFlag{Model: all[i].word}.Dir(e)
		}
	}
	return all, err
}

// configs returns the settings of all models, from the flags for all of them and those of each. oneModel
// has the flags of the command that belong to one model, with whether they are set.
func (f *ServeFlags) configs(e *ui.Env, draft string, oneModel map[string]bool) (out []modelSettings, specs []modelSpec, err error) {
	if specs, err = f.find(e); err != nil {
		return nil, nil, err
	}
	maps.Copy(oneModel, map[string]bool{"model-name": len(f.Serve.Names) > 0, "lora": len(f.Serve.LoRA) > 0, "lora-dir": f.Serve.LoRADir != "",
		"score-tokens": len(f.Serve.ScoreTokens) > 0, "swiftkv": f.SwiftKV != "", "draft": draft != ""})
	for _, name := range slices.Sorted(maps.Keys(oneModel)) {
		if len(specs) > 1 && oneModel[name] {
			return nil, nil, fmt.Errorf("--%s belongs to one of the %d models: give it with the model, as --model %s,%s=VALUE", name,
				len(specs), cmp.Or(specs[0].word, "MODEL"), name)
		}
	}
	for i := range specs {
		m := modelSettings{ServeConfig: f.Serve, Draft: draft}
		m.Model, m.SwiftKV, m.Weights = specs[i].path, f.SwiftKV, string(f.Quant)
		if err := specs[i].apply(&m); err != nil {
			return nil, nil, err
		}
		if m.Draft != "" && m.Speculate == string(speculate.Suffix) {
			m.Speculate = string(speculate.Model)
		}
		if m.LoRA, err = adapterFolders(e, m.LoRA); err != nil {
			return nil, nil, err
		}
		if m.Draft, err = models.FindDraft(e, m.Draft); err != nil {
			return nil, nil, err
		}
		out = append(out, m)
	}
	return out, specs, nil
}

// ofModel adds the model to an error, if there are several.
func ofModel(all []modelSettings, i int, err error) error {
	if err == nil || len(all) < 2 {
		return err
	}
	return fmt.Errorf("model %s: %w", cmp.Or(append(slices.Clone(all[i].Names), all[i].Model)...), err)
}

// further returns the settings of all models but the first.
func further(all []modelSettings) (out []cluster.ServeConfig) {
	for _, m := range all[1:] {
		out = append(out, m.ServeConfig)
	}
	return out
}
