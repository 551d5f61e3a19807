//go:build !purego

package native

import (
	"debug/elf"
	"encoding/binary"
	"unsafe"
)

// A program is the executable that the dynamic loader links. It is dynamically linked, in memory, and
// without code. It needs libc and libdl, and has three words which the loader fills with the addresses
// of dlopen, dlsym and dlerror.
type program struct {
	headers     uintptr // address of the program headers
	headerCount int
	words       uintptr // addresses of the three functions
}

const (
	programHeaderSize = 56
	symbolSize        = 24
	relocationSize    = 24
)

func (p program) function(i int) Func { return *at[Func](p.words + uintptr(8*i)) }

// newProgram builds one. The tables follow the ELF specification, chapters 4 and 5.
func newProgram() (program, error) {
	const size = pageSize
	memory, err := mapMemory(size)
	if err != nil {
		return program{}, err
	}
	b := unsafe.Slice(at[byte](memory), size)
	base := uint64(memory)
	// Offsets of the tables.
	const headers, dynamic, names, symbols, relocations, words, hash = 64, 512, 1024, 1280, 1536, 1792, 1856
	put := func(at uint64, values ...uint64) {
		for i, v := range values {
			binary.LittleEndian.PutUint64(b[at+uint64(8*i):], v)
		}
	}
	next := uint64(1) // the name at 0 is empty
	name := func(s string) uint64 {
		at := next
		next += uint64(copy(b[names+at:symbols], s)) + 1
		return at
	}

	interpreter := name(loaderPath)
	entries := []uint64{
		uint64(elf.DT_NEEDED), name("libc.so.6"),
		uint64(elf.DT_NEEDED), name("libdl.so.2"),
	}
	functions := []string{"dlopen", "dlsym", "dlerror"}
	for i, f := range functions {
		symbol := uint64(symbols + symbolSize*(i+1)) // the symbol 0 is empty
		binary.LittleEndian.PutUint32(b[symbol:], uint32(name(f)))
		b[symbol+4] = elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)
		put(uint64(relocations+relocationSize*i), base+words+uint64(8*i), elf.R_INFO(uint32(i+1), uint32(elf.R_X86_64_GLOB_DAT)), 0)
	}
	binary.LittleEndian.PutUint32(b[hash:], 1)                          // one bucket, which is empty
	binary.LittleEndian.PutUint32(b[hash+4:], uint32(len(functions)+1)) // symbols
	entries = append(entries,
		uint64(elf.DT_HASH), base+hash,
		uint64(elf.DT_STRTAB), base+names,
		uint64(elf.DT_STRSZ), next,
		uint64(elf.DT_SYMTAB), base+symbols,
		uint64(elf.DT_SYMENT), symbolSize,
		uint64(elf.DT_RELA), base+relocations, //nolint:misspell // the ELF specification's name
		uint64(elf.DT_RELASZ), uint64(relocationSize*len(functions)),
		uint64(elf.DT_RELAENT), relocationSize,
		uint64(elf.DT_BIND_NOW), 0,
		uint64(elf.DT_NULL), 0)
	put(dynamic, entries...)

	segments := []struct {
		kind             elf.ProgType
		flags            elf.ProgFlag
		at, bytes, align uint64
	}{
		{elf.PT_PHDR, elf.PF_R, headers, 5 * programHeaderSize, 8},
		{elf.PT_INTERP, elf.PF_R, names + interpreter, uint64(len(loaderPath) + 1), 1},
		{elf.PT_LOAD, elf.PF_R | elf.PF_W, 0, size, pageSize},
		{elf.PT_DYNAMIC, elf.PF_R | elf.PF_W, dynamic, uint64(8 * len(entries)), 8},
		{elf.PT_GNU_STACK, elf.PF_R | elf.PF_W, 0, 0, 16},
	}
	for i, s := range segments {
		address := base + s.at
		put(uint64(headers+programHeaderSize*i), uint64(s.kind)|uint64(s.flags)<<32, s.at, address, address, s.bytes, s.bytes, s.align)
	}
	return program{headers: memory + headers, headerCount: len(segments), words: memory + words}, nil
}
