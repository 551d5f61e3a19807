//go:build !purego

package native

import (
	"encoding/binary"
	"unsafe"
)

// Keys of the auxiliary vector (getauxval(3)).
const (
	atProgramHeaders     = 3
	atProgramHeaderSize  = 4
	atProgramHeaderCount = 5
	atLoaderBase         = 7
	atEntry              = 9
	atExecutableName     = 31
)

// Bounds of the strings on the stack of the C thread.
const (
	maxVariable    = 4 << 10
	maxEnvironment = 128 << 10
)

// initialStack writes the initial stack of a program, as the kernel does: the number of arguments, the
// arguments, the environment, and the auxiliary vector with some values replaced. It returns the stack
// pointer. Variables that are too long are left out.
func initialStack(stack, size uintptr, environment []string, auxv []byte, replace map[uint64]uint64) uintptr {
	text := stack + size - maxEnvironment
	end := stack + size
	str := func(s string) uint64 {
		p := text
		copy(unsafe.Slice(at[byte](p), len(s)), s) // zeroes follow
		text += uintptr(len(s) + 1)
		return uint64(p)
	}
	name := str("shoal")
	words := []uint64{1, name, 0}
	for _, v := range environment {
		if len(v) < maxVariable && text+uintptr(len(v)+1) <= end {
			words = append(words, str(v))
		}
	}
	words = append(words, 0)
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		key, value := binary.LittleEndian.Uint64(auxv), binary.LittleEndian.Uint64(auxv[8:])
		if key == 0 {
			break
		}
		if v, ok := replace[key]; ok {
			value = v
		} else if key == atExecutableName {
			value = name
		}
		words = append(words, key, value)
	}
	words = append(words, 0, 0)
	sp := (stack + size - maxEnvironment - uintptr(8*len(words))) &^ 15
	copy(unsafe.Slice(at[uint64](sp), len(words)), words)
	return sp
}
