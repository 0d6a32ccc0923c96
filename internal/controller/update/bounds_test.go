package update

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
)

// largestObjects is a reader that returns a Secret of the largest size, or a ConfigMap with manyKeys empty keys, for any name. The names of
// ConfigMaps are numbers, and no two have a key in common.
type largestObjects struct{ ctrlclient.Reader }

// manyKeys is about how many keys fit into an object with which the controller works.
const manyKeys = 55_000

func (largestObjects) Get(_ context.Context, name ctrlclient.ObjectKey, object ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		object.(*corev1.Secret).Data = map[string][]byte{"key": make([]byte, corev1.MaxSecretSize-len("key")), "short": []byte("x")}
		return nil
	}
	number, err := strconv.Atoi(name.Name)
	configMap.Data = make(map[string]string, manyKeys)
	for i := range manyKeys {
		configMap.Data[strconv.FormatInt(int64(number*manyKeys+i), 36)] = ""
	}
	return err
}

// maxOperationMemory is how many bytes may be allocated to put the values of an operation together: for the objects, the values, and a
// copy.
const maxOperationMemory = 3 * maxValues

func TestValuesOfAnOperationAreBounded(t *testing.T) {
	doubling := []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 1<<10)}}
	for i := range 40 {
		doubling = append(doubling, corev1.EnvVar{Name: fmt.Sprint("V", i+1), Value: fmt.Sprintf("$(V%d)$(V%[1]d)", i)})
	}
	var prefixes []corev1.EnvFromSource
	var secrets []corev1.EnvVar
	var longest []corev1.EnvVar
	var configured []autov1alpha1.ConfigItem
	var keys []corev1.EnvFromSource
	var keyOfMany []autov1alpha1.ConfigItem
	for i := range 25 {
		name := strconv.Itoa(i)
		keys = append(keys, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{Name: name}})
		keyOfMany = append(keyOfMany, autov1alpha1.ConfigItem{Key: "c" + name, ValueFrom: &autov1alpha1.ConfigValueFrom{
			ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: name, Key: strconv.FormatInt(int64(i*manyKeys), 36)},
		}})
	}
	for i := range 1000 {
		secret := corev1.SecretEnvSource{Name: "large"}
		prefixes = append(prefixes, corev1.EnvFromSource{Prefix: fmt.Sprint("P", i), SecretRef: &secret})
		secrets = append(secrets, corev1.EnvVar{Name: fmt.Sprint("S", i), ValueFrom: secretKey(fmt.Sprint("secret-", i), "short")})
		longest = append(longest, corev1.EnvVar{Name: "L", Value: strings.Repeat("x", maxVariable-len("L="))})
		configured = append(configured, autov1alpha1.ConfigItem{Key: fmt.Sprint("c", i), ValueFrom: &autov1alpha1.ConfigValueFrom{
			SecretKeyRef: &autov1alpha1.KeyReference{Name: "large", Key: "key"},
		}})
	}
	for name, test := range map[string]struct {
		workspace autov1alpha1.WorkspaceSpec
		config    []autov1alpha1.ConfigItem
		refusal   string
	}{
		"references that double":     {autov1alpha1.WorkspaceSpec{Env: doubling}, nil, `environment variable "V7" has more than 128 KiB`},
		"a Secret with any prefix":   {autov1alpha1.WorkspaceSpec{EnvFrom: prefixes}, nil, `has more than 128 KiB`},
		"a key of a thousand":        {autov1alpha1.WorkspaceSpec{Env: secrets}, nil, "the Secrets and ConfigMaps that the operation uses have more than 8 MiB"},
		"the longest variables":      {autov1alpha1.WorkspaceSpec{Env: longest}, nil, "the environment and the configuration of the operation have more than 8 MiB"},
		"one Secret in all settings": {autov1alpha1.WorkspaceSpec{}, configured, "the environment and the configuration of the operation have more than 8 MiB"},
		"all keys of 25 ConfigMaps":  {autov1alpha1.WorkspaceSpec{EnvFrom: keys}, nil, `with the 55000 keys of configmap "0", the operation has more than 10000 environment variables`},
		"a key of each of them": {autov1alpha1.WorkspaceSpec{}, keyOfMany,
			`the Secrets and ConfigMaps that the operation uses have more than 8 MiB, with 64 bytes for each key; the last one is configmap "2"`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			values := &inputReader{Reader: inputs.Reader{APIReader: largestObjects{}, Namespace: "team"}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := values.environment(t.Context(), &autov1alpha1.Workspace{Spec: test.workspace})
			if err == nil {
				_, err = values.config(t.Context(), test.config)
			}
			runtime.ReadMemStats(&after)
			g.Expect(err).To(BeAssignableToTypeOf(&inputs.InvalidError{}))
			g.Expect(err).To(MatchError(ContainSubstring(test.refusal)))
			g.Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", maxOperationMemory))
		})
	}
}

// noObjects is a reader without objects. It counts the requests.
type noObjects struct {
	ctrlclient.Reader
	requests int
}

func (n *noObjects) Get(_ context.Context, key ctrlclient.ObjectKey, _ ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	n.requests++
	return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

func TestOperationAsksForABoundedNumberOfObjectsAndForEachOnce(t *testing.T) {
	g := NewWithT(t)
	read := func(distinct int) (int, error) {
		var list []corev1.EnvVar
		for i := range 10 * references.MaxObjects {
			source := secretKey(fmt.Sprint("secret-", i%distinct), "key")
			source.SecretKeyRef.Optional = new(true)
			list = append(list, corev1.EnvVar{Name: fmt.Sprint("S", i), ValueFrom: source})
		}
		none := &noObjects{}
		_, err := (&inputReader{Reader: inputs.Reader{APIReader: none, Namespace: "team"}}).environment(t.Context(), &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{Env: list}})
		return none.requests, err
	}
	requests, err := read(references.MaxObjects)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(requests).To(Equal(references.MaxObjects))
	requests, err = read(10 * references.MaxObjects)
	g.Expect(err).To(MatchError(ContainSubstring("more than 1000 Secrets and ConfigMaps")))
	g.Expect(requests).To(Equal(references.MaxObjects))
}
