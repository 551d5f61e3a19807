package strictjson

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Bodies in one row are the same request; bodies in two rows are not.
func TestCanonical(t *testing.T) {
	classes := [][]string{
		{`{"prompt":"Once upon a time","max_tokens":40}`, `{"prompt": "Once upon a time", "max_tokens": 40}`, "{\n\t\"max_tokens\" : 40.0 ,\r\n \"prompt\":\"Once\\u0020upon a time\"}\n",
			`{"max_tokens":4e1,"prompt":"Once upon a time"}`, `{"max_tokens":400e-1,"prompt":"Once upon a time"}`},
		{`{"prompt":"<x> & y"}`, `{"prompt":"\u003cx\u003e \u0026 y"}`, `{"prompt":"\u003Cx> & y"}`},
		{`{"prompt":"\u2028é😀/"}`, "{\"prompt\":\"\u2028\\u00e9\\ud83d\\ude00\\/\"}", "{\"prompt\":\"\u2028é\\uD83D\\uDE00/\"}"},
		{`{"seed":9007199254740993}`, `{"seed":9007199254740993.0}`, `{"seed":90071992547409930e-1}`},
		{`{"seed":9007199254740992}`},
		{`{"a":0}`, `{"a":-0}`, `{"a":0.0e7}`},
		{`{"a":1e999999999999999999}`, `{"a": 1e999999999999999999}`},
		{`{"a":[1,2]}`}, {`{"a":[2,1]}`}, {`{"a":"1"}`}, {`{"a":null}`}, {`{}`, ` { } `}, {`{"a":{"c":1,"b":[{"e":1,"d":2}]}}`, `{"a":{"b":[{"d":2,"e":1}],"c":1}}`},
	}
	seen := map[string]int{}
	for i, class := range classes {
		for _, body := range class {
			got, err := Canonical([]byte(body))
			if err != nil || !json.Valid(got) {
				t.Fatalf("%s: %s, %v", body, got, err)
			}
			if was, ok := seen[string(got)]; ok && was != i {
				t.Errorf("%s is one of %q", body, classes[was])
			}
			seen[string(got)] = i
		}
		if len(seen) != i+1 {
			t.Fatalf("%q are not one", class)
		}
		stored, err := json.Marshal(struct{ Body json.RawMessage }{json.RawMessage(class[0])})
		var back struct{ Body json.RawMessage }
		if err == nil {
			err = json.Unmarshal(stored, &back)
		}
		got, cerr := Canonical(back.Body)
		if err != nil || cerr != nil || seen[string(got)] != i {
			t.Errorf("%s, as encoding/json stores it: %s %v %v", class[0], got, err, cerr)
		}
	}
}

func TestInt(t *testing.T) {
	for text, want := range map[string]int64{"5": 5, "5.0": 5, "5.000": 5, "5e0": 5, "50e-1": 5,
		"0.5e1": 5, "5E+0": 5, "-5.0": -5, "0": 0, "-0": 0, "-0.0": 0, "0e400": 0,
		"9007199254740993.0": 9007199254740993, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63, "1e18": 1e18, "1200": 1200} {
		if got, ok := Int([]byte(text)); !ok || got != want {
			t.Errorf("%s: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "-", "5.5", "0.1", "1e-1", "9223372036854775808", "1e19", "1e400", "1e99999999999999999999", `"5"`, "true", "null", "5x", "[5]", "5.00000000000000001", "--5", "+5"} {
		if got, ok := Int([]byte(text)); ok {
			t.Errorf("%s is %d", text, got)
		}
	}
}

func TestCheck(t *testing.T) {
	l := Limits{Depth: 4, Members: 3, Names: 200}
	wide := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"a":{`)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`"k` + strings.Repeat("x", i) + `":1`)
		}
		return b.String()
	}
	for doc, want := range map[string]string{
		`{}`: "", `[]`: "", `1`: "", `{"a":"a","b":["a","a"]}`: "", `{"a":{"b":1},"c":{"b":1}}`: "", `[{"a":1},{"a":1}]`: "",
		`{"a":1,"a":2}`: `The JSON body has the member "a" twice`,
		`{"messages":[{"role":"user"},{"role":"user","content":"x","content":"y"}]}`: `'messages[1]' has the member "content" twice`,
		`{"a":{"b":{"c":1,"\u0063":2}}}`:                                             `'a.b' has the member "c" twice`,
		`{"a":[[{"é":1,"\u00e9":2}]]}`:                                               `'a[0][0]' has the member "é" twice`,
		`{"a":{"x":1,"b":{"x":1},"x":1}}`:                                            `'a' has the member "x" twice`,
		`{"a":"\"a\":1,\"a\":2"}`:                                                    "",
		`[[[[1]]]]`:                                                                  "", `[[[[[1]]]]]`: "nested deeper than 4 levels",
		`{"a":1,"b":2,"c":3}`: "", `{"a":1,"b":2,"c":3,"d":4}`: "more than 3 members",
		wide(150) + `}}`: "", wide(40) + `,"kxxx":2}}`: `'a' has the member "kxxx" twice`, wide(200) + `}}`: "more than 200 members in nested objects",
		`{"a`: "", `}}}`: "", `{{{`: "", `{"a":`: "",
	} {
		f := Check([]byte(doc), l)
		if (f == nil) != (want == "") || f != nil && !strings.Contains(f.Message, want) {
			t.Errorf("%.80s: %+v, want %q", doc, f, want)
		}
	}
	if f := Check([]byte(`{"messages":[{"role":1,"role":2}]}`), l); f == nil || f.At != "messages[0].role" {
		t.Errorf("%+v", f)
	}
}

type inner struct {
	N    int            `json:"n"`
	Text *string        `json:"text"`
	Any  any            `json:"any"`
	Map  map[string]int `json:"map"`
}

type outer struct {
	inner
	List []inner         `json:"list"`
	Raw  json.RawMessage `json:"raw"`
	Yes  bool            `json:"yes"`
	F    float64         `json:"f"`
	Tiny int8            `json:"tiny"`
	None int             `json:"-"`
}

// For exact names this decoder and encoding/json agree.
func TestUnmarshalAgrees(t *testing.T) {
	for _, doc := range []string{
		`{}`, ` null `, `{"n":5,"text":"a","any":{"b":[1,null]},"map":{"x":1},"list":[{"n":1},null,{"text":null}],"raw": {"a" :1},"yes":true,"f":1.5,"tiny":-3}`,
		`{"list":null,"raw":null,"map":null,"yes":null,"n":null,"f":1e3,"unknown":{"n":1}}`, `{"n":1,"n":2}`, `{"f":-0.5}`,
	} {
		var got, want outer
		err, werr := Unmarshal([]byte(doc), &got), json.Unmarshal([]byte(doc), &want)
		if err != nil || werr != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v %v\n%+v %v", doc, got, err, want, werr)
		}
	}
}

func TestUnmarshalIsExact(t *testing.T) {
	var x outer
	if err := Unmarshal([]byte(`{"N":1,"lisT":[{"n":1}],"list":[{"N":2,"n":7.0,"Text":"a"}],"YES":true,"None":3,"-":3,"map":{"a":2.0,"A":3e0}}`), &x); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(x, outer{inner: inner{Map: map[string]int{"a": 2, "A": 3}}, List: []inner{{N: 7}}}) {
		t.Errorf("%+v", x)
	}
	for doc, want := range map[string]string{
		`[]`: "It must be an object.", `{"list":{}}`: "'list' must be a list.", `{"list":[{"n":1},{"n":"1"}]}`: "'list[1].n' must be an integer.",
		`{"tiny":300}`: "'tiny' must be an integer of 8 bits.", `{"yes":1}`: "'yes' must be true or false.", `{"text":5}`: "'text' must be a string.", `{"map":{"b":1,"a":"x"}}`: "'map.a' must be an integer.",
		`{"f":"1"}`: "'f' must be a number.", `{"n":1.5}`: "'n' must be an integer.", `{`: "byte 1", `{"a":1} x`: "byte 9", `"` + "\n" + `"`: "not valid JSON",
	} {
		var x outer
		if err := Unmarshal([]byte(doc), &x); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
	if _ = Unmarshal([]byte(`{"n":"bad","yes":true,"f":2}`), &x); !x.Yes || x.F != 2 {
		t.Errorf("the rest of a document with a fault is not decoded: %+v", x)
	}
}

// Check agrees with decoding the document and comparing all names.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"a":{"b":[{"c":1,"\u0063":1}]}}`, `[{"a":1},{"a":1}]`, `{"\ud800":1,"\ufffd":2}`, `}{"a"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		fault := Check(doc, Limits{Names: 1 << 20})
		if !json.Valid(doc) {
			return
		}
		if twice := hasTwice(t, doc); twice != (fault != nil) {
			t.Fatalf("%q: a name twice: %v, %+v", doc, twice, fault)
		}
		canonical, err := Canonical(doc)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Canonical(canonical); err != nil || string(again) != string(canonical) {
			t.Fatalf("%s becomes %s, %v", canonical, again, err)
		}
	})
}

// hasTwice is the reference implementation of Check.
func hasTwice(t *testing.T, doc []byte) bool {
	d := json.NewDecoder(strings.NewReader(string(doc)))
	var walk func() bool
	walk = func() bool {
		tok, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		twice := false
		switch tok {
		case json.Delim('{'):
			names := map[string]bool{}
			for d.More() {
				name, err := d.Token()
				if err != nil {
					t.Fatal(err)
				}
				twice = twice || names[name.(string)]
				names[name.(string)] = true
				twice = walk() || twice
			}
			_, _ = d.Token()
		case json.Delim('['):
			for d.More() {
				twice = walk() || twice
			}
			_, _ = d.Token()
		}
		return twice
	}
	return walk()
}
