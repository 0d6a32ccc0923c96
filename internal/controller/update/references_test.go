package update

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
)

// newReferenced creates the objects that the tables below refer to.
func newReferenced(t *testing.T) *fixture {
	t.Helper()
	s := newFixture(t)
	s.newSecret("credentials", map[string]string{"token": "t0ken", "SHARED": "secret", "json": `{"a":[1]}`})
	s.newSecret("binary", map[string]string{"nul": "a\x00b"})
	s.Expect(s.client.Create(t.Context(), &corev1.ConfigMap{
		Namespace: s.namespace, Name: "settings",
		Data: map[string]string{"region": "eu", "SHARED": "plain", "json": `{"b":12345678901234567890}`},
	})).To(Succeed())
	return s
}

func TestEnvironment(t *testing.T) {
	s := newReferenced(t)
	fromSecret := func(name string) corev1.EnvFromSource {
		return corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{Name: name}}
	}
	fromConfigMap := func(name string) corev1.EnvFromSource {
		return corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{Name: name}}
	}
	optionalKey := func(name, key string) *corev1.EnvVarSource {
		from := secretKey(name, key)
		from.SecretKeyRef.Optional = new(true)
		return from
	}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	tests := map[string]struct {
		from    []corev1.EnvFromSource
		env     []corev1.EnvVar
		want    map[string]variable
		missing string
		invalid string
	}{
		"nothing": {want: map[string]variable{}},
		"values":  {env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B"}}, want: map[string]variable{"A": {value: "1"}, "B": {}}},
		"all of a config map, with a prefix": {
			from: []corev1.EnvFromSource{{Prefix: "X_", ConfigMapRef: fromConfigMap("settings").ConfigMapRef}},
			want: map[string]variable{"X_region": {value: "eu"}, "X_SHARED": {value: "plain"}, "X_json": {value: `{"b":12345678901234567890}`}},
		},
		"the later of two sources wins, env over both": {
			from: []corev1.EnvFromSource{fromConfigMap("settings"), fromSecret("credentials")},
			env:  []corev1.EnvVar{{Name: "region", Value: "us"}, {Name: "json", Value: ""}},
			want: map[string]variable{"region": {value: "us"}, "json": {}, "SHARED": {value: "secret", secret: true}, "token": {value: "t0ken", secret: true}},
		},
		"references are expanded, and make secret what they go into": {
			env: []corev1.EnvVar{
				{Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}, {Name: "HOST", Value: "h"},
				{Name: "URL", Value: "https://$(TOKEN)@$(HOST)/$$(HOST)/$(NONE)/$x$"}, {Name: "PLAIN", Value: "$(HOST)"}, {Name: "OPEN", Value: "$(HOST"},
			},
			want: map[string]variable{
				"TOKEN": {value: "t0ken", secret: true}, "HOST": {value: "h"}, "URL": {value: "https://t0ken@h/$(HOST)/$(NONE)/$x$", secret: true},
				"PLAIN": {value: "h"}, "OPEN": {value: "$(HOST"},
			},
		},
		"the workspace's own name": {
			env:  []corev1.EnvVar{{Name: "NAME", ValueFrom: field("metadata.name")}, {Name: "NAMESPACE", ValueFrom: field("metadata.namespace")}},
			want: map[string]variable{"NAME": {value: "app"}, "NAMESPACE": {value: s.namespace}},
		},
		"optional and missing": {
			from: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{Name: "absent", Optional: new(true)}}},
			env:  []corev1.EnvVar{{Name: "A", ValueFrom: optionalKey("absent", "x")}, {Name: "B", ValueFrom: optionalKey("credentials", "x")}},
			want: map[string]variable{},
		},
		"optional and there": {env: []corev1.EnvVar{{Name: "A", ValueFrom: optionalKey("credentials", "token")}},
			want: map[string]variable{"A": {value: "t0ken", secret: true}}},
		"missing secret":        {from: []corev1.EnvFromSource{fromSecret("absent")}, missing: `secret "absent", which envFrom of the workspace needs`},
		"missing config map":    {from: []corev1.EnvFromSource{fromConfigMap("absent")}, missing: `configmap "absent"`},
		"missing key":           {env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("credentials", "x")}}, missing: `key "x" in secret "credentials", which environment variable "A" needs`},
		"unknown field":         {env: []corev1.EnvVar{{Name: "A", ValueFrom: field("status.podIP")}}, invalid: `environment variable "A" of workspace "app"`},
		"a value with a NUL":    {env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("binary", "nul")}}, invalid: `environment variable "A" cannot be set`},
		"a name with an equals": {env: []corev1.EnvVar{{Name: "A=B"}}, invalid: `"A=B" cannot be the name`},
		"no name":               {env: []corev1.EnvVar{{Value: "x"}}, invalid: `"" cannot be the name`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &autov1alpha1.Workspace{Namespace: s.namespace, Name: "app"}
			workspace.Spec.EnvFrom, workspace.Spec.Env = tt.from, tt.env
			env, err := (&inputReader{Reader: inputs.Reader{APIReader: s.client, Namespace: s.namespace}}).environment(t.Context(), workspace)
			if checkReferenceError(g, err, tt.missing, tt.invalid) {
				return
			}
			got := map[string]variable{}
			for _, item := range env {
				got[item.GetName()] = variable{value: item.GetText(), secret: item.GetSecret()}
			}
			g.Expect(got).To(Equal(tt.want))
		})
	}
}

// checkReferenceError checks the error, and reports whether one was expected.
func checkReferenceError(g *WithT, err error, missing, invalid string) bool {
	switch {
	case missing != "":
		g.Expect(err).To(And(BeAssignableToTypeOf(&inputs.MissingError{}), MatchError(ContainSubstring(missing))))
	case invalid != "":
		g.Expect(err).To(And(BeAssignableToTypeOf(&inputs.InvalidError{}), MatchError(ContainSubstring(invalid))))
	default:
		g.Expect(err).NotTo(HaveOccurred())
		return false
	}
	return true
}

func TestConfig(t *testing.T) {
	s := newReferenced(t)
	value := func(raw string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(raw)} }
	secretRef := func(key string, json bool) *autov1alpha1.ConfigValueFrom {
		return &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "credentials", Key: key}, JSON: json}
	}
	configMapRef := func(key string, json bool) *autov1alpha1.ConfigValueFrom {
		return &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: "settings", Key: key}, JSON: json}
	}
	text := func(text string) *agentpb.ConfigItem {
		return &agentpb.ConfigItem{Value: &agentpb.ConfigItem_Text{Text: text}}
	}
	json := func(text string) *agentpb.ConfigItem {
		return &agentpb.ConfigItem{Value: &agentpb.ConfigItem_Json{Json: text}}
	}
	secret := func(item *agentpb.ConfigItem) *agentpb.ConfigItem { item.Secret = true; return item }
	tests := map[string]struct {
		item    autov1alpha1.ConfigItem
		want    *agentpb.ConfigItem
		missing string
		invalid string
	}{
		"text":                 {item: autov1alpha1.ConfigItem{Value: value(`"a\"b"`)}, want: text(`a"b`)},
		"number":               {item: autov1alpha1.ConfigItem{Value: value(`12345678901234567890`)}, want: json(`12345678901234567890`)},
		"boolean":              {item: autov1alpha1.ConfigItem{Value: value(`true`)}, want: json(`true`)},
		"object":               {item: autov1alpha1.ConfigItem{Value: value(`{"a":[1]}`)}, want: json(`{"a":[1]}`)},
		"null":                 {item: autov1alpha1.ConfigItem{Value: value(`null`)}, want: json(`null`)},
		"declared secret":      {item: autov1alpha1.ConfigItem{Value: value(`"x"`), Secret: new(true)}, want: secret(text("x"))},
		"path":                 {item: autov1alpha1.ConfigItem{Value: value(`"x"`), Path: new(true)}, want: &agentpb.ConfigItem{Path: true, Value: &agentpb.ConfigItem_Text{Text: "x"}}},
		"from a secret":        {item: autov1alpha1.ConfigItem{ValueFrom: secretRef("token", false)}, want: secret(text("t0ken"))},
		"secret in any case":   {item: autov1alpha1.ConfigItem{ValueFrom: secretRef("token", false), Secret: new(false)}, want: secret(text("t0ken"))},
		"JSON of a secret":     {item: autov1alpha1.ConfigItem{ValueFrom: secretRef("json", true)}, want: secret(json(`{"a":[1]}`))},
		"from a config map":    {item: autov1alpha1.ConfigItem{ValueFrom: configMapRef("region", false)}, want: text("eu")},
		"JSON of a config map": {item: autov1alpha1.ConfigItem{ValueFrom: configMapRef("json", true)}, want: json(`{"b":12345678901234567890}`)},
		"from the environment": {item: autov1alpha1.ConfigItem{ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "A", JSON: true}},
			want: &agentpb.ConfigItem{ParseJson: true, Value: &agentpb.ConfigItem_FromEnv{FromEnv: "A"}}},
		"from a file": {item: autov1alpha1.ConfigItem{ValueFrom: &autov1alpha1.ConfigValueFrom{Path: "/x"}},
			want: &agentpb.ConfigItem{Value: &agentpb.ConfigItem_FromFile{FromFile: "/x"}}},
		"missing secret": {item: autov1alpha1.ConfigItem{ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "absent", Key: "x"}}},
			missing: `secret "absent", which configuration key "k" needs`},
		"missing key": {item: autov1alpha1.ConfigItem{ValueFrom: configMapRef("x", false)}, missing: `key "x" in configmap "settings"`},
		"broken JSON": {item: autov1alpha1.ConfigItem{ValueFrom: secretRef("token", true)}, invalid: `the value of configuration key "k" is not JSON`},
		"no value":    {item: autov1alpha1.ConfigItem{}, invalid: `configuration key "k" has neither`},
		"no source":   {item: autov1alpha1.ConfigItem{ValueFrom: &autov1alpha1.ConfigValueFrom{}}, invalid: "names no source"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tt.item.Key = "k"
			config, err := (&inputReader{Reader: inputs.Reader{APIReader: s.client, Namespace: s.namespace}}).config(t.Context(), []autov1alpha1.ConfigItem{tt.item})
			if checkReferenceError(g, err, tt.missing, tt.invalid) {
				return
			}
			tt.want.Key = "k"
			g.Expect(config).To(HaveLen(1))
			g.Expect(config[0]).To(equalMessage(tt.want))
		})
	}
}
