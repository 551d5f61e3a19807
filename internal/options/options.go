// Package options reads the tags of the table of options. A row of the table is a field of a
// struct, such as those in cluster/options.go. Its tags are:
//
//	name     the name of the option: its flag, its YAML key and, in capitals, its variable;
//	         default: the name of the field in lower case with hyphens
//	help     what it sets, the unit, the default. "With --x:" or "Without --x:" at its beginning
//	         makes it an error to set the option without x, or with it
//	default  the value that replaces the zero value
//	range    the bounds of a number or a duration, LOW..HIGH or LOW..; without a default, 0 is valid too
//	oneof    the valid words, with commas between them; without a default, no word is valid too
//
// The command line makes flags of the same tags (internal/cli). A Go program sets the fields.
package options

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var flags atomic.Bool

// NameFlags makes Name return flags from now on. The command line calls it.
func NameFlags() { flags.Store(true) }

// Name returns the form of an option in messages: --step-tokens on the command line, step-tokens in a
// Go program.
func Name(option string) string {
	if flags.Load() {
		return "--" + option
	}
	return option
}

// Tags are the tags of a row.
type Tags interface{ Get(key string) string }

// SetDefaults gives the fields of the struct to which s points their defaults, where they are zero.
func SetDefaults(s any) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		text, f := v.Type().Field(i).Tag.Get("default"), v.Field(i)
		if text == "" || !f.CanSet() || !f.IsZero() {
			continue
		}
		if err := set(f, text); err != nil { // the row is wrong for every user
			panic(fmt.Sprintf("options: default %q of %s: %v", text, v.Type().Field(i).Name, err))
		}
	}
}

// Set sets a field to the value that a text has on the command line. It adds to a list or a map.
func Set(f reflect.Value, text string) error {
	switch f.Kind() {
	case reflect.Slice:
		for _, part := range strings.Split(text, ",") {
			f.Set(reflect.Append(f, reflect.ValueOf(part)))
		}
		return nil
	case reflect.Map:
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return fmt.Errorf("want NAME=VALUE, not %q", text)
		}
		if f.IsNil() {
			f.Set(reflect.MakeMap(f.Type()))
		}
		f.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(value))
		return nil
	case reflect.Int, reflect.Int64:
		if f.Type() != reflect.TypeFor[time.Duration]() {
			if err := set(f, text); err != nil {
				return fmt.Errorf("want a whole number or a size, not %q", text)
			}
			return nil
		}
		if err := set(f, text); err != nil {
			return fmt.Errorf("want a duration, such as 500ms, 30s or 5m, not %q", text)
		}
		return nil
	}
	return set(f, text)
}

func set(f reflect.Value, text string) error {
	if f.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		f.SetInt(int64(d))
		return err
	}
	switch f.Kind() {
	case reflect.String:
		f.SetString(text)
		return nil
	case reflect.Int, reflect.Int64:
		n, err := ParseSize(text)
		f.SetInt(n)
		return err
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		f.SetFloat(x)
		return err
	}
	return fmt.Errorf("options: a field of type %v cannot be an option: want a string, an integer, a duration or a float64", f.Type())
}

// Check checks the fields of the struct to which s points against their ranges and words.
func Check(s any) error {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		if err := CheckValue(NameOf(f), f.Tag, v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// NameOf returns the name of the option that a field declares.
func NameOf(f reflect.StructField) string {
	if name := f.Tag.Get("name"); name != "" {
		return name
	}
	var b strings.Builder
	for i, r := range f.Name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// CheckValue checks a value of an option, and each element of a list.
func CheckValue(option string, tags Tags, v reflect.Value) error {
	bounds, words := tags.Get("range"), tags.Get("oneof")
	if bounds == "" && words == "" {
		return nil
	}
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			if err := CheckValue(option, tags, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	optional := tags.Get("default") == ""
	if v.IsZero() && optional {
		return nil
	}
	if words != "" {
		if known := strings.Split(words, ","); !slices.Contains(known, v.String()) {
			return fmt.Errorf("%s %q: known are %s", Name(option), v.String(), strings.Join(known, ", "))
		}
		return nil
	}
	low, high, _ := strings.Cut(bounds, "..")
	if within(v, low, high) {
		return nil
	}
	want := "at least " + low
	if high != "" {
		want = low + " to " + high
	}
	if optional && low != "0" {
		want += ", or 0 for the default"
	}
	return fmt.Errorf("%s %v: want %s", Name(option), v.Interface(), want)
}

// within reports whether a number is within the bounds; high "" is any finite number.
func within(v reflect.Value, low, high string) bool {
	least, most := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	for _, b := range []struct {
		bound reflect.Value
		text  string
	}{{least, low}, {most, high}} {
		if b.text == "" {
			continue
		}
		if err := set(b.bound, b.text); err != nil {
			panic(fmt.Sprintf("options: bound %q: %v", b.text, err))
		}
	}
	if v.Kind() == reflect.Float64 {
		x := v.Float()
		return x >= least.Float() && (high == "" && x <= math.MaxFloat64 || x <= most.Float())
	}
	return v.Int() >= least.Int() && (high == "" || v.Int() <= most.Int())
}

// Condition returns the option with which another one applies, or without which, from the beginning
// of its help. ok reports whether there is one.
func Condition(help string) (option string, with, ok bool) {
	first, rest, _ := strings.Cut(help, " --")
	option, _, ok = strings.Cut(rest, ":")
	ok = ok && (first == "With" || first == "Without") && !strings.Contains(option, " ")
	return option, first == "With", ok
}

// SizeText writes a number of bytes with a binary unit: "1.50 GiB".
func SizeText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// ParseSize reads a number of bytes: 512MiB, 2GiB, 1.5GB, 1000000. Without a larger unit it must be whole.
func ParseSize(text string) (int64, error) {
	t, unit := strings.TrimSpace(text), int64(1)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"K", 1 << 10},
		{"M", 1 << 20}, {"G", 1 << 30}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(t, 10, 64); unit == 1 && err == nil && n >= 0 && n < 1<<60 {
		return n, nil // with all its digits
	}
	n, err := strconv.ParseFloat(t, 64)
	if err != nil || !(n >= 0 && n*float64(unit) < 1<<60) || unit == 1 && n != math.Trunc(n) {
		return 0, fmt.Errorf("%q is not a size: write 512MiB, 2GiB or a number of bytes", text)
	}
	return int64(n * float64(unit)), nil
}
