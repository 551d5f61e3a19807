package kernels

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const generate = "go run ./internal/engine/cuda/kernels/gen"

func TestPTXIsOfTheSources(t *testing.T) {
	if want := Head(SourceHash()); !strings.HasPrefix(string(PTX()), want) {
		t.Errorf("kernels.ptx.gz is of other sources: run %s", generate)
	}
}

func TestNames(t *testing.T) {
	var entries []string
	for _, m := range regexp.MustCompile(`\.entry (\w+)`).FindAllStringSubmatch(string(PTX()), -1) {
		entries = append(entries, m[1])
	}
	slices.Sort(entries)
	if !slices.Equal(entries, Names) {
		t.Errorf("kernels.ptx.gz has %q, Names has %q", entries, Names)
	}
}

// The driver links no library, so a call of a function that is not in the text does not load.
func TestPTXIsComplete(t *testing.T) {
	if at := regexp.MustCompile(`\.extern \.func.*`).FindString(string(PTX())); at != "" {
		t.Errorf("kernels.ptx.gz calls a function that it does not define: %s", at)
	}
}

// complaint returns the error in an instruction, or "". Arithmetic on floats must name
// its rounding; it must neither approximate nor flush subnormals.
func complaint(instruction string) string {
	name, _, _ := strings.Cut(instruction, " ")
	parts := strings.Split(name, ".")
	has := func(p string) bool { return slices.Contains(parts[1:], p) }
	switch {
	case has("approx"):
		return "approximates"
	case has("ftz"):
		return "flushes subnormals"
	case has("full"):
		return "divides inexactly"
	case !has("f32") && !has("f64") && !has("f16"):
		return ""
	}
	switch parts[0] {
	case "add", "sub", "mul", "div", "fma", "sqrt", "rcp":
		if !has("rn") {
			return "names no rounding"
		}
	case "mad", "ex2", "lg2", "sin", "cos", "tanh", "rsqrt":
		return "is inexact"
	}
	return ""
}

var instruction = regexp.MustCompile(`^\s+(?:@!?%\w+\s+)?([a-z]\w*(?:\.\w+)*\s.*;)`)

func lint(ptx string) (n int, complaints []string) {
	for line := range strings.Lines(ptx) {
		if m := instruction.FindStringSubmatch(line); m != nil {
			n++
			if c := complaint(m[1]); c != "" {
				complaints = append(complaints, strings.TrimSpace(m[1])+" "+c)
			}
		}
	}
	return n, complaints
}

func TestArithmeticIsExact(t *testing.T) {
	n, complaints := lint(string(PTX()))
	if n < 200 {
		t.Fatalf("only %d instructions were read", n)
	}
	for _, c := range complaints {
		t.Error(c)
	}
	for _, bad := range []string{"add.f32 %f1, %f2, %f3;", "div.full.f32 %f1, %f2, %f3;", "@%p1 mul.rn.ftz.f32 %f1, %f2, %f3;",
		"ex2.approx.f32 %f1, %f2;", "mad.f32 %f1, %f2, %f3, %f4;", "sqrt.approx.f32 %f1, %f2;"} {
		if _, c := lint("\t" + bad + "\n"); len(c) != 1 {
			t.Errorf("%s passes", bad)
		}
	}
}
