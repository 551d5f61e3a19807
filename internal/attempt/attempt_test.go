package attempt

import (
	"errors"
	"os"
	"testing"
)

func TestAt(t *testing.T) {
	if v, err := At(func() int { return 7 }); v != 7 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	_, err := At(func() []byte { return Must(os.ReadFile(t.TempDir() + "/none")) })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that there is no file", err)
	}
	defer func() {
		if p := recover(); p != "a fault" {
			t.Errorf("recovered %v, want the fault itself", p)
		}
	}()
	_, err = At(func() int { panic("a fault") })
	t.Errorf("a fault became the error %v", err)
}
