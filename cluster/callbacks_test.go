package cluster

import (
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher"
)

// TestCallbacksAreNotPublic checks that the types of the public API have no method that only the
// batcher calls.
func TestCallbacksAreNotPublic(t *testing.T) {
	stepper := reflect.TypeFor[batcher.Stepper]()
	for _, public := range []reflect.Type{reflect.TypeFor[*Coordinator](), reflect.TypeFor[*Local]()} {
		for i := range stepper.NumMethod() {
			if name := stepper.Method(i).Name; hasMethod(public, name) {
				t.Errorf("%v has the method %s", public, name)
			}
		}
	}
	if !hasMethod(reflect.TypeFor[callbacks](), "StartStep") {
		t.Error("the check finds no method at all")
	}
}

func hasMethod(t reflect.Type, name string) bool {
	_, ok := t.MethodByName(name)
	return ok
}
