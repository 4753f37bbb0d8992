from tinker_cookbook.utils.trace.perfetto import convert_jsonl_to_json_main

convert_jsonl_to_json_main()
