//go:build !unix

package flock

import (
	"errors"
	"os"
)

func lock(*os.File, Kind) error { return errors.ErrUnsupported }
