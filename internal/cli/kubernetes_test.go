package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// apiTypes are the types of deploy/kubernetes/schema.yaml.
type apiTypes map[string]any

// check returns the errors of a value, with their places.
func (s apiTypes) check(kind any, v *yaml.Node, at string) (wrong []string) {
	if v.Kind == yaml.AliasNode {
		v = v.Alias
	}
	complain := func(format string, args ...any) { wrong = append(wrong, at+": "+fmt.Sprintf(format, args...)) }
	each := func(of any, from, step int) {
		for i := from; i < len(v.Content); i += step {
			wrong = append(wrong, s.check(of, v.Content[i], fmt.Sprintf("%s[%d]", at, i/step))...)
		}
	}
	name, _ := kind.(string)
	if words, ok := kind.([]any); ok {
		if !slices.Contains(words, any(v.Value)) {
			complain("%q is none of %v", v.Value, words)
		}
	} else if of, ok := strings.CutPrefix(name, "[]"); ok {
		if v.Kind != yaml.SequenceNode {
			complain("no list")
		}
		each(of, 0, 1)
	} else if of, ok := strings.CutPrefix(name, "map:"); ok {
		if v.Kind != yaml.MappingNode {
			complain("no map")
		}
		each(of, 1, 2)
	} else if members, ok := s[name].(apiTypes); ok {
		if v.Kind != yaml.MappingNode {
			complain("no %s", name)
			return wrong
		}
		there := map[string]bool{}
		for i := 0; i < len(v.Content); i += 2 {
			key := v.Content[i].Value
			of, ok := members[key]
			if !ok {
				of, ok = members["*"+key]
			}
			if there["*"+key] = true; !ok {
				complain("a %s has no %q", name, key)
				continue
			}
			wrong = append(wrong, s.check(of, v.Content[i+1], at+"."+key)...)
		}
		for key := range members {
			if strings.HasPrefix(key, "*") && !there[key] {
				complain("a %s must have %q", name, key[1:])
			}
		}
	} else {
		if other, ok := s[name].(string); ok {
			name = other
		}
		tags := map[string]string{"string": "!!str", "integer": "!!int", "boolean": "!!bool", "number": "!!int"}
		if !slices.ContainsFunc(strings.Split(name, "|"), func(t string) bool { return v.Tag == tags[t] }) {
			complain("%q is %s, want %s (add a missing type to schema.yaml)", v.Value, v.Tag, name)
		}
	}
	return wrong
}

// TestKubernetesSchema checks that the manifests use only the types and members of Kubernetes.
func TestKubernetesSchema(t *testing.T) {
	types := documents[map[string]any](t, "../../deploy/kubernetes/schema.yaml")[0]
	known := apiTypes{}
	for name, v := range types {
		if members, ok := v.(map[string]any); ok {
			v = apiTypes(members)
		}
		known[name] = v
	}
	check := func(n *yaml.Node) []string {
		var o struct{ Kind string }
		if err := n.Decode(&o); err != nil {
			t.Fatal(err)
		}
		return known.check(o.Kind, n.Content[0], o.Kind)
	}
	all := documents[yaml.Node](t, "../../deploy/kubernetes/shoal.yaml")
	if len(all) != 5 {
		t.Errorf("%d documents", len(all))
	}
	for i := range all {
		for _, wrong := range check(&all[i]) {
			t.Error(wrong)
		}
	}
	for text, want := range map[string]string{ // each error must be found
		"kind: Service\napiVersion: v1\nspec: {ports: [{name: api}]}":                                         `must have "port"`,
		"kind: Service\napiVersion: v2":                                                                       "none of",
		"kind: Service\nspec: {selectors: {a: b}}":                                                            `no "selectors"`,
		"kind: Service\nspec: {selector: {a: 1}}":                                                             "want string",
		"kind: Service\nspec: {ports: {port: 1}}":                                                             "no list",
		"kind: PodDisruptionBudget\nspec: {maxUnavailable: true}":                                             "want string|integer",
		"kind: StatefulSet\nspec: {template: {spec: {containers: [{name: a, livenessProbe: {httpGet: 1}}]}}}": "no HTTPGetAction",
	} {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(check(&n), "; "); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
