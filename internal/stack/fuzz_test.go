package stack

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// FuzzReadyExpr checks that an expression ends in time, whatever it is, with a message that is short and shows no secret of a Stack.
func FuzzReadyExpr(f *testing.F) {
	const canary = "canary-s3cr3t-value"
	numbers := "[1,2,3,4,5,6,7,8,9,0]"
	for _, seed := range []string{
		"dep.status.lastUpdate.state == 'succeeded'", "self.metadata.name == dep.metadata.name && has(dep.status.outputs)", "true", "1", "", "dep.spec.secrets.a == 'x'",
		"dep.spec.envRefs.A.literal.value.startsWith('c')", "int(dep.spec.secrets.a) == 1", "dep.spec.secrets.a.matches('^(a+)+$')", "'a'.matches('(((a{1,30}){1,30}){1,30})')",
		numbers + ".all(a, " + numbers + ".all(b, " + numbers + ".all(c, " + numbers + ".all(d, " + numbers + ".all(e, a + b + c + d + e < 100)))))",
		strings.Repeat("(", 300) + "true" + strings.Repeat(")", 300), strings.Repeat("!", 5000) + "true", "'x'" + strings.Repeat("+'x'", 1500) + " == 'x'", "true //" + strings.Repeat("\x01", 7000),
		strings.Repeat("a.b, ", 1500), "dep.?spec.?x.orValue(true)", "base64.decode('" + strings.Repeat("A", 4000) + "') == b''", "'%s'.format([dep]) == ''", "[1].map(x, [x, x]).flatten() == []", "\xff\u2028",
		"'" + strings.Repeat("x", 4000) + "'.replace('x', '" + strings.Repeat("y", 3000) + "').replace('y', '" + strings.Repeat("z", 900) + "') == ''",
		"'" + strings.Repeat("x", 4000) + "'.split('').join('" + strings.Repeat("y", 3000) + "') == ''", "'%.999999999f'.format([1.0]) == ''",
		"'" + strings.Repeat("\\\\", 10) + "'" + strings.Repeat(".reverse()", 100) + " == ''", "[[1, 1]]" + strings.Repeat(".map(a, a + a)", 60) + ".all(a, a == a)",
		"[[1, 1]]" + strings.Repeat(".map(a, [a, a])", 60) + ".all(a, a == a)", strings.Repeat("strings.quote(", 200) + "'\\\\'" + strings.Repeat(")", 200) + " == ''",
		"'a,b'.split(',').join('-').replace('-', '+') == 'a+b' && '%s is %d'.format(['a', 1]) == 'a is 1'", "{'a': [self, dep]}.a.all(x, x.spec.stack == 'dev')",
	} {
		f.Add(seed)
	}
	stack := func(name string) *pulumiv1.Stack {
		return &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pulumiv1.StackSpec{
			Stack: "dev", Secrets: map[string]string{"a": canary}, EnvRefs: map[string]pulumiv1.ResourceRef{"A": {LiteralRef: &pulumiv1.LiteralRef{Value: canary}}},
		}}
	}
	self, dep := stack("self"), stack("dep")
	f.Fuzz(func(t *testing.T, expression string) {
		begin := time.Now()
		message := unmet(context.Background(), dependency{expression: expression}, self, dep)
		if expression == "" {
			return
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Fatalf("%q took %s", expression, took)
		}
		// A byte takes four in quotes at most.
		if len(message) > 5*maxQuoted || !utf8.ValidString(message) || strings.Contains(message, canary) && !strings.Contains(expression, canary) {
			t.Fatalf("%q: %d bytes: %q", expression, len(message), message)
		}
		if _, err := compileExpression(expression); err != nil && len(err.Error()) > 2*maxQuoted {
			t.Fatalf("%q: %d bytes: %v", expression, len(err.Error()), err)
		}
	})
}

// FuzzShownOutputs checks that the outputs in a status are JSON, bounded, and not those that the annotation names as secret.
func FuzzShownOutputs(f *testing.F) {
	f.Add("a", []byte(`{"x": 1}`), []byte(`"canary-s3cr3t-value"`), `["b"]`, `{"a": "the/name"}`)
	f.Add("a", []byte(`{`), []byte("canary-s3cr3t-value"), ``, `{"b": "a"}`)
	f.Add("c", []byte(strings.Repeat("1", maxStatusOutputs)), []byte(`"canary-s3cr3t-value"`), `["b", "b"]`, `{"c": ""}`)
	f.Add("a", []byte(" 1 "), []byte("2"), `{"b": true}`, `[]`)
	f.Add("a", []byte("\"\xff\""), []byte("2"), `null`, `{"a": null, "b": "\ud800"}`)
	f.Fuzz(func(t *testing.T, key string, value, secretValue []byte, secrets, names string) {
		secret := &corev1.Secret{Data: map[string][]byte{key: value, "b": secretValue}}
		secret.Annotations = map[string]string{autov1alpha1.SecretOutputsAnnotation: secrets, autov1alpha1.OutputNamesAnnotation: names}
		outputs, err := shownOutputs(secret)
		if err != nil {
			if strings.Contains(err.Error(), "canary") {
				t.Fatal(err)
			}
			return
		}
		size := 0
		for name, output := range outputs {
			size += len(name) + len(output.Raw)
			if !json.Valid(output.Raw) {
				t.Fatalf("%q is %q", name, output.Raw)
			}
		}
		if size > maxStatusOutputs+maxStatusNotes {
			t.Fatalf("%d bytes", size)
		}
		var named []string
		if json.Unmarshal([]byte(secrets), &named) == nil && len(named) == 1 && named[0] == "b" && key != "b" {
			for name, output := range outputs {
				if strings.Contains(string(output.Raw), "canary-s3cr3t-value") && !strings.Contains(string(value), "canary") {
					t.Fatalf("%q shows the secret", name)
				}
			}
		}
	})
}
