package informercache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/validation"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// most is how much text an object has at most that an API server admits, in bytes: the limit of etcd for a request.
const most = 1500 << 10

// filled returns a list or an object of many items between the brackets, of at most that many bytes.
func filled(brackets string, bytes int, item func(i int) string) string {
	var text strings.Builder
	text.WriteByte(brackets[0])
	for i := 0; ; i++ {
		next := item(i)
		if text.Len()+len(next)+2 > bytes {
			return strings.TrimSuffix(text.String(), ",") + brackets[1:]
		}
		text.WriteString(next + ",")
	}
}

func empty(item string) func(int) string { return func(int) string { return item } }

// worstObjects are the texts of objects that cost most, by what is in them.
func worstObjects() map[string]string {
	nested := func(levels int, inner string) string {
		return strings.Repeat(`{"a":`, levels) + inner + strings.Repeat("}", levels)
	}
	spec := func(field, value string) string {
		return `{"apiVersion":"pulumi.com/v1","kind":"Stack","metadata":{"name":"app","namespace":"team"},"spec":{"stack":"dev","` + field + `":` + value + `}}`
	}
	metadata := func(field, value string) string {
		return `{"apiVersion":"pulumi.com/v1","kind":"Stack","metadata":{"name":"app","namespace":"team","` + field + `":` + value + `},"spec":{"stack":"dev"}}`
	}
	pod := func(field, value string) string {
		return spec("workspaceTemplate", `{"spec":{"podTemplate":{"spec":{"`+field+`":`+value+`}}}}`)
	}
	const room = most - 1000
	return map[string]string{
		"numbers in 900 objects, one in the other": spec("config", `{"a":`+nested(900, filled("[]", 200_000, empty("0")))+`}`),
		"objects, one in the other":                spec("config", `{"a":`+nested(room/7, "0")+`}`),
		"lists, one in the other":                  spec("config", `{"a":`+strings.Repeat("[", room/2-10)+strings.Repeat("]", room/2-10)+`}`),
		"numbers in thousands of nested objects":   spec("config", filled("{}", room, func(i int) string { return fmt.Sprintf(`"%d":`, i) + nested(60, "0") })),
		"a long text":                              spec("config", `{"a":"`+strings.Repeat("a", room)+`"}`),
		"a text of escapes":                        spec("config", `{"a":"`+strings.Repeat(`\\`, room/2)+`"}`),
		"a text of quotation marks":                spec("config", `{"a":"`+strings.Repeat(`\"`, room/2)+`"}`),
		"numbers":                                  spec("config", `{"a":`+filled("[]", room, empty("0"))+`}`),
		"empty texts":                              spec("targets", filled("[]", room, empty(`""`))),
		"as many texts as are not too many":        spec("targets", filled("[]", 700_000, empty(`""`))),
		"references":                               spec("envRefs", filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":{}`, i) })),
		"references of falling sizes":              spec("envRefs", filled("{}", room, func(i int) string { return fmt.Sprintf(`"%06x":{"type":"%s"}`, i, strings.Repeat("x", 60-i/600)) })),
		"labels":                                   metadata("labels", filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":""`, i) })),
		"annotations":                              metadata("annotations", filled("{}", 256<<10, func(i int) string { return fmt.Sprintf(`"%x":""`, i) })),
		"owners":                                   metadata("ownerReferences", filled("[]", room, empty("{}"))),
		"finalizers":                               metadata("finalizers", filled("[]", room, empty(`"a/b"`))),
		"tolerations":                              pod("tolerations", filled("[]", room, empty("{}"))),
		"containers":                               pod("containers", filled("[]", room, func(i int) string { return fmt.Sprintf(`{"name":"%x"}`, i) })),
		"containers in a small object":             pod("containers", filled("[]", 60_000, func(i int) string { return fmt.Sprintf(`{"name":"%x"}`, i) })),
		"empty containers in a small object":       pod("containers", filled("[]", 12_000, empty("{}"))),
	}
}

// decoder decodes objects as the client of the API server does.
func newDecoder(g *WithT) apiruntime.Decoder {
	scheme := apiruntime.NewScheme()
	g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
	g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}

// received does what a watch of all objects does with one event: it reads, decodes and transforms the object.
func received(g *WithT, decoder apiruntime.Decoder, object string) client.Object {
	body := io.NopCloser(strings.NewReader(`{"type":"MODIFIED","object":` + object + "}\n"))
	var event struct{ Object json.RawMessage }
	g.Expect(json.NewDecoder(&stream{ReadCloser: body, step: (*stream).event}).Decode(&event)).To(Succeed())
	decoded, _, err := decoder.Decode(event.Object, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	return transformed(g, decoded.(client.Object))
}

// allocated returns how many bytes the function allocates.
func allocated(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// All objects of a kind wait while an event is read.
func TestEventTakesLittleMemoryWhateverATenantWrites(t *testing.T) {
	decoder := newDecoder(NewWithT(t))
	for name, object := range worstObjects() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(len(object)).To(BeNumerically("<=", most))
			var kept client.Object
			g.Expect(allocated(func() { kept = received(g, decoder, object) })).To(BeNumerically("<", 8<<20+4*len(object)))
			g.Expect(memoryOf(kept, MaxMemory)).To(BeNumerically("<=", MaxSize))
			g.Expect(IsShortened(kept)).To(BeTrue())
			g.Expect(client.ObjectKeyFromObject(kept)).To(Equal(client.ObjectKey{Namespace: "team", Name: "app"}))
			if !IsTooLarge(kept) {
				g.Expect(kept.(*pulumiv1.Stack).Spec.Stack).To(Equal("dev"))
			}
		})
	}
}

func TestTextOfAnEventIsScannedAFewTimesOnly(t *testing.T) {
	for name, object := range worstObjects() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scanner := newScanner([]byte(object))
			g.Expect(scanner.scan()).To(BeTrue())
			g.Expect(scanner.at).To(Equal(len(object)))
			g.Expect(len(scanner.large)).To(BeNumerically("<=", 3*len(object)/minLarge*maxDepth/4+maxDepth))
			d := scanner.document(&bytes.Buffer{})
			d.keepBounded(0, Fields{"metadata": {"managedFields": nil}})
			g.Expect(d.scanned).To(BeNumerically("<=", 3*len(object)))
			g.Expect(d.out.Len()).To(BeNumerically("<=", MaxSize))
			g.Expect(json.Valid(d.out.Bytes())).To(BeTrue())
		})
	}
}

func TestUsersCannotWriteTheMarkOfAShortenedObject(t *testing.T) {
	g := NewWithT(t)
	g.Expect(validation.ValidateAnnotations(map[string]string{shortenedAnnotation: "true"}, nil)).NotTo(BeEmpty())
}

func TestFieldsThatNobodyReadsDoNotCount(t *testing.T) {
	g := NewWithT(t)
	unread := Fields{"metadata": {"managedFields": nil, "annotations": {"last": nil}}, "program": nil}
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
		for _, unread := range []Fields{nil, {"status": {"a": nil}}} {
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
