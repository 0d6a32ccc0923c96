package informercache

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/worstobjects"
)

func TestTextOfAnEventIsScannedAFewTimesOnly(t *testing.T) {
	suite.WithoutRaceDetector(t)
	for _, kind := range worstobjects.Kinds {
		for name, object := range worstobjects.Of(kind) {
			t.Run(kind.Kind+"/"+name, func(t *testing.T) {
				g := NewWithT(t)
				g.Expect(json.Valid([]byte(object)) || strings.Contains(name, "one in the other")).To(BeTrue(), "the library does not decode very deep nesting")
				scanner := newScanner([]byte(object))
				g.Expect(scanner.scan()).To(BeTrue())
				g.Expect(scanner.at).To(Equal(len(object)))
				g.Expect(len(scanner.large)).To(BeNumerically("<=", maxDepth*len(object)/minLarge))
				d := scanner.document(&bytes.Buffer{})
				d.keepBounded(0, fields{"metadata": {"managedFields": nil}})
				g.Expect(d.scanned).To(BeNumerically("<=", 3*len(object)))
				g.Expect(d.out.Len()).To(BeNumerically("<=", MaxSize))
				g.Expect(json.Valid(d.out.Bytes())).To(BeTrue())
			})
		}
	}
}

func TestUsersCannotWriteTheMarkOfAShortenedObject(t *testing.T) {
	g := NewWithT(t)
	g.Expect(validation.ValidateAnnotations(map[string]string{ShortenedAnnotation: "true"}, nil)).NotTo(BeEmpty())
}

func TestFieldsThatNobodyReadsDoNotCount(t *testing.T) {
	g := NewWithT(t)
	unread := fields{"metadata": {"managedFields": nil, "annotations": {"last": nil}}, "program": nil}
	metadata := `"metadata":{"name":"app","annotations":{"last":"` + largeText() + `","a":"b"},"managedFields":[{}]}`
	for object, want := range map[string]string{
		`{"kind":"Stack",` + metadata + `,"program":["` + largeText() + `"],"spec":{}}`: `{"spec":{},"kind":"Stack","metadata":{"name":"app","annotations":{"a":"b"}}}`,
		`{"kind":"Stack",` + metadata + `,"spec":{"a":"` + largeText() + `"}}`:          `{"kind":"Stack","metadata":{"name":"app","annotations":{"a":"b","(shortened)":"true"}},"spec":{}}`,
	} {
		list := `{"kind":"StackList","metadata":{},"items":[` + object + `,{"kind":"Stack"}]}`
		text, err := io.ReadAll(&stream{ReadCloser: io.NopCloser(strings.NewReader(list)), unread: unread, step: (*stream).begin})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(text)).To(Equal(`{"kind":"StackList","metadata":{},"items":[` + want + `,{"kind":"Stack"}]}`))
	}
}

func TestOnlyJSONIsAskedFor(t *testing.T) {
	g := NewWithT(t)
	for accepted, want := range map[string]string{
		"application/vnd.kubernetes.protobuf, */*": " */*",
		"application/json":                         "application/json",
		"application/cbor":                         "application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	} {
		g.Expect(onlyJSON(accepted)).To(Equal(want))
	}
}

// What the stream does not change, or does not understand, it passes on.
func TestOtherAnswersArePassedOn(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{
		"", "{", `{"a"`, "x", "]", `"`, `{"items":null,"a":[{"items":[1]}],"b":1.5e3}`, `{"kind":"Status","code":404}`, `[{"items":[]}]`, `{"items":[{},1,"x",[]],"z":""}`,
	} {
		for _, step := range []func(*stream) error{(*stream).begin, (*stream).event} {
			got, err := io.ReadAll(&stream{ReadCloser: io.NopCloser(strings.NewReader(text)), step: step})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(got)).To(Equal(text))
		}
	}
	failing := io.MultiReader(strings.NewReader(`{"type":`), iotest.ErrReader(errors.New("canary")))
	got, err := io.ReadAll(&stream{ReadCloser: io.NopCloser(failing), step: (*stream).event})
	g.Expect(err).To(MatchError("canary"))
	g.Expect(string(got)).To(Equal(`{"type":`))
}

// FuzzStream checks that what is kept of JSON is JSON, within the bounds and found with little work, wherever the pieces of a body begin.
func FuzzStream(f *testing.F) {
	f.Add([]byte(`{"items":[{"metadata":{"annotations":null,"a\"b":[1,2,{"c":""}]}}]}`), uint16(20), uint16(100))
	f.Add([]byte(`{"metadata":{"annotations":{"a":"b"},"labels":{}},"spec":[],"status":{"conditions":[{"type":"Ready"}],"a":1}}`), uint16(0), uint16(200))
	f.Add([]byte(`{"metadata":"x","spec":{"a":[[[[{"b":-1.5e3}]]],true,null]} , "z" : "\\"}`), uint16(3), uint16(60))
	f.Add([]byte(`{"type":"ADDED","object":{"spec":"\u0022\n"}}`), uint16(30), uint16(10))
	f.Fuzz(func(t *testing.T, body []byte, cut, limit uint16) {
		at := min(int(cut), len(body))
		for _, step := range []func(*stream) error{(*stream).begin, (*stream).event} {
			pieces := io.MultiReader(bytes.NewReader(body[:at]), bytes.NewReader(body[at:]))
			text, err := io.ReadAll(&stream{ReadCloser: io.NopCloser(pieces), step: step})
			if err != nil || !bytes.Equal(text, body) && json.Valid(body) && compact(body) != compact(text) {
				t.Fatalf("%q became %q: %v", body, text, err)
			}
		}
		if len(body) == 0 || body[0] != '{' {
			return
		}
		scanner := newScanner(body)
		scanner.scan()
		for _, unread := range []fields{nil, {"status": {"a": nil}}} {
			d := scanner.document(&bytes.Buffer{})
			d.keepParts(0, int(limit), unread, shortened)
			if json.Valid(body) && !json.Valid(d.out.Bytes()) {
				t.Fatalf("of %q was kept %q", body, d.out)
			}
			if d.scanned > 4*len(body)+100 || d.out.Len() > 4*int(limit)+2*len(body)/100+200 {
				t.Fatalf("scanned %d bytes for %d of %d", d.scanned, d.out.Len(), len(body))
			}
		}
	})
}

func compact(text []byte) string {
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		return err.Error()
	}
	return out.String()
}
