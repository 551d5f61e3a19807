//go:build !linux

package sharedmem

import (
	"context"
	"os"
)

// Region is a process's view of the parts.
type Region struct{}

// Part is a process's reference to one part.
type Part struct{}

func Create() (*os.File, error)       { return nil, ErrUnsupported }
func Open(*os.File) (*Region, error)  { return nil, ErrUnsupported }
func (*Region) Huge() (huge, all int) { return 0, 0 }
func (*Region) Close() error          { return nil }

func (*Region) Take(context.Context, Key, int) (*Part, error) { return nil, ErrUnsupported }

func (*Part) Bytes() []byte { return nil }
func (*Part) Filled() bool  { return false }
func (*Part) Done()         {}
func (*Part) Close() error  { return nil }
