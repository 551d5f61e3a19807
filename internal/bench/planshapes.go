package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// planShapes has public models by name, with the sizes of their config.json. DeepSeek V3 is from
// arXiv 2412.19437, section 4.2, without the multi-token prediction layer, which is not used.
var planShapes = func() (m map[string]json.RawMessage) {
	if err := json.Unmarshal(planShapesFile, &m); err != nil {
		panic("bench: planshapes.json: " + err.Error())
	}
	return m
}()

//go:embed planshapes.json
var planShapesFile []byte

// PlanShapes returns the names that PlanShape accepts, sorted.
func PlanShapes() []string {
	return slices.Sorted(maps.Keys(planShapes))
}

// PlanShape returns a public model by name.
func PlanShape(name string) (PlanModel, error) {
	text, ok := planShapes[name]
	if !ok {
		return PlanModel{}, fmt.Errorf("bench: unknown model %q; give a folder with a config.json, or one of: %s",
			name, strings.Join(PlanShapes(), ", "))
	}
	c, err := model.ParseConfig(name, text, nil)
	if err != nil {
		return PlanModel{}, err
	}
	return PlanModelOf(name, &c), nil
}
