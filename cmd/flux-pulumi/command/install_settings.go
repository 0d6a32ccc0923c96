package command

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// The fields of the Deployment that need more than their name.
const (
	ofManager     = `.spec.template.spec.containers[name="manager"]`
	argsField     = ofManager + ".args"
	imageField    = ofManager + ".image"
	agentVariable = "AGENT_IMAGE"
	agentField    = ofManager + `.env[name="` + agentVariable + `"].value`
)

// checkSettings returns an error if the installation has settings that the manifests would take away, as those of an overlay, or images of
// another registry that the user has not named. Only the Deployment and the network policies are for settings.
func (c *cluster) checkSettings(ctx context.Context, objects []*unstructured.Unstructured, i *installation) error {
	var lost []string
	for _, object := range objects {
		if kind := object.GetKind(); kind != "Deployment" && kind != "NetworkPolicy" {
			continue
		}
		present := &unstructured.Unstructured{}
		present.SetGroupVersionKind(object.GroupVersionKind())
		err := c.read(ctx, client.ObjectKeyFromObject(object), present)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		fields, err := c.fieldsOfOthers(ctx, object, present)
		if err != nil {
			return err
		}
		if object.GetKind() == "Deployment" {
			before, after := &appsv1.Deployment{}, &appsv1.Deployment{}
			if err := asDeployment(present, before); err != nil {
				return err
			}
			if err := asDeployment(object, after); err != nil {
				return err
			}
			if err := i.checkImages(managerOf(before), managerOf(after)); err != nil {
				return err
			}
			fields = settings(fields, before, after)
		}
		for _, field := range fields {
			lost = append(lost, strings.TrimPrefix(named(object)+" "+field, "Deployment "+controllerName+" "))
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("nothing was changed: the installation has other settings, which this would take away: %s. Upgrade it in the way in which it was "+
			"installed, or take them away with --force. If nobody has changed install.yaml, they are what its version has", strings.Join(lost, ", "))
	}
	return nil
}

// fieldsOfOthers returns the fields of the specification that others have set, and that would have other values when the object was applied.
func (c *cluster) fieldsOfOthers(ctx context.Context, object, present *unstructured.Unstructured) ([]string, error) {
	after := object.DeepCopy()
	if err := c.apply(ctx, after, client.DryRunAll); err != nil {
		return nil, nil // what is against it is found when all is tried
	}
	own, err := ownedFields(present, fieldOwner)
	if err != nil {
		return nil, err
	}
	fields := changed(present.Object["spec"], after.Object["spec"], ".spec")
	return slices.DeleteFunc(fields, func(field string) bool { return own[field] }), nil
}

// changed returns the fields below the path that have another value afterwards, or none, named as those of the API server.
func changed(before, after any, path string) (fields []string) {
	switch before := before.(type) {
	case map[string]any:
		after, _ := after.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(before)) {
			fields = append(fields, changed(before[name], after[name], path+"."+name)...)
		}
		return fields
	case []any:
		for i := range before {
			name, _, _ := unstructured.NestedString(asMap(before[i]), "name")
			if name == "" {
				break // a list that is one value
			}
			same := slices.IndexFunc(asList(after), func(item any) bool { return asMap(item)["name"] == name })
			if same < 0 {
				fields = append(fields, fmt.Sprintf("%s[name=%q]", path, name))
				continue
			}
			fields = append(fields, changed(before[i], asList(after)[same], fmt.Sprintf("%s[name=%q]", path, name))...)
			if i == len(before)-1 {
				return fields
			}
		}
	}
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	return []string{path}
}

func asMap(value any) map[string]any {
	found, _ := value.(map[string]any)
	return found
}

func asList(value any) []any {
	found, _ := value.([]any)
	return found
}

// ownedFields returns the fields that the manager owns, as the API server names them in conflicts.
func ownedFields(object metav1.Object, manager string) (map[string]bool, error) {
	fields := map[string]bool{}
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != manager || entry.FieldsV1 == nil {
			continue
		}
		set := &fieldpath.Set{}
		if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
			return nil, fmt.Errorf("read who owns the fields of %s: %w", object.GetName(), err)
		}
		set.Iterate(func(path fieldpath.Path) { fields[path.String()] = true })
	}
	return fields, nil
}

// settings replaces the arguments by the names of the flags that would be lost, and leaves out the images, which each version has of its own. It adds
// what an overlay has removed, as for OpenShift.
func settings(fields []string, before, after *appsv1.Deployment) (lost []string) {
	for _, field := range fields {
		switch field {
		case imageField, agentField:
		case argsField:
			for _, arg := range managerOf(before).Args {
				if name, _, _ := strings.Cut(arg, "="); !slices.Contains(managerOf(after).Args, arg) && !slices.Contains(lost, name) {
					lost = append(lost, name)
				}
			}
		default:
			lost = append(lost, field)
		}
	}
	groupOf := func(deployment *appsv1.Deployment) *int64 {
		return ptr.Deref(deployment.Spec.Template.Spec.SecurityContext, corev1.PodSecurityContext{}).FSGroup
	}
	if groupOf(before) == nil && groupOf(after) != nil {
		lost = append(lost, "no .spec.template.spec.securityContext.fsGroup")
	}
	return lost
}

// checkImages returns an error if one of the images is of another registry than before, and the user has not named it.
func (i *installation) checkImages(before, after corev1.Container) error {
	agentOf := func(container corev1.Container) string {
		for _, variable := range container.Env {
			if variable.Name == agentVariable {
				return variable.Value
			}
		}
		return ""
	}
	for _, image := range []struct {
		flag, was, is string
		named         bool
	}{
		{"--image", before.Image, after.Image, i.namesImage}, {"--agent-image", agentOf(before), agentOf(after), i.namesAgent},
	} {
		was, is := repositoryOf(image.was), repositoryOf(image.is)
		if !image.named && was != "" && was != is {
			return fmt.Errorf("nothing was changed: the installation has the image %s, and this would take %s. Name that of the new version with %s, or take "+
				"what the release has with --force", was, is, image.flag)
		}
	}
	return nil
}

// repositoryOf returns the name of an image without its tag and its digest.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if tag := strings.LastIndex(image, ":"); tag > strings.LastIndex(image, "/") {
		return image[:tag]
	}
	return image
}

func asDeployment(object *unstructured.Unstructured, into *appsv1.Deployment) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		return fmt.Errorf("read the Deployment %s: %w", object.GetName(), err)
	}
	return nil
}

// managerOf returns the container of the controller.
func managerOf(deployment *appsv1.Deployment) corev1.Container {
	containers := deployment.Spec.Template.Spec.Containers
	if i := slices.IndexFunc(containers, func(container corev1.Container) bool { return container.Name == "manager" }); i >= 0 {
		return containers[i]
	}
	return corev1.Container{}
}
