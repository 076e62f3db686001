"""What stands on the wire: JSON read strictly, fields that take exactly their type, and names that are mapped once, by declared field.

A DTO declares its fields in snake_case; on the wire they are camelCase. Only declared names are mapped: JSON that belongs to a job
(payload, checkpoint, validatedOutput) is never walked for names.
"""
