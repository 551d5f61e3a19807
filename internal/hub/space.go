package hub

import (
	"fmt"
	"github.com/shoal-llm/shoal/internal/options"
	"os"
	"path/filepath"
)

// checkSpace returns ErrSpace if fewer than need bytes are free below dir. The parameter what names the model
// in errors.
func checkSpace(dir string, need int64, what string) error {
	return spaceError(dir, need, what, freeSpace)
}

func spaceError(dir string, need int64, what string, free func(string) (int64, bool)) error {
	at := dir
	for { // the folder itself may not be there yet
		if _, err := os.Stat(at); err == nil {
			break
		}
		up := filepath.Dir(at)
		if up == at {
			return nil
		}
		at = up
	}
	if have, ok := free(at); ok && have < need {
		return fmt.Errorf("%w: %s needs %s more, and %s has %s free: free %s, or set HF_HUB_CACHE and SHOAL_MODELS to folders on a larger disk",
			ErrSpace, what, options.SizeText(need), dir, options.SizeText(have), options.SizeText(need-have))
	}
	return nil
}
